"""Glosses of animals, plants and foods, one word a line."""

from __future__ import annotations

TEXT = """
penguin a flightless seabird of cold southern regions that swims with its wings
whale a very large mammal that lives in the sea
dog a domesticated mammal related to the wolf, often kept as a pet
cat a small furry mammal with sharp claws, often kept as a pet
horse a large hoofed mammal that people ride
cow a large female farm animal kept for its milk
pig a fat farm animal with a flat snout kept for its meat
sheep a farm mammal kept for its wool and meat
goat a horned farm mammal related to the sheep
chicken a farm bird kept for its eggs and meat
duck a water bird with a broad bill and webbed feet
goose a large web-footed water bird with a long neck
turkey a large farm bird with a fan-shaped tail and a bare head
rabbit a small furry mammal with long ears and a short tail
hare an animal like a rabbit with longer ears and legs
mouse a small rodent with a pointed nose and a long tail
rat a rodent like a mouse but larger
squirrel a small rodent with a bushy tail that lives in trees
hamster a small round rodent kept as a pet
hedgehog a small mammal covered with sharp spines
mole a small furry mammal that digs tunnels under the ground
bat a flying mammal that is active at night
fox a wild mammal with a pointed nose and a bushy tail
wolf a predatory wild mammal related to the dog that hunts in packs
bear a massive furry mammal with strong claws
lion a large wild cat of Africa whose male has a mane
tiger a large wild cat of Asia with orange and black stripes
leopard a large wild cat with dark spots
cheetah a spotted wild cat that is the fastest runner on land
jaguar a large spotted wild cat of South America
lynx a wild cat with a short tail and tufted ears
panther a large wild cat, often black
elephant a very large mammal with a long trunk and tusks
rhinoceros a massive animal with thick skin and horns on its nose
hippopotamus a massive animal with thick skin that lives in African rivers
giraffe the tallest living animal, with a very long neck
zebra an African animal like a horse with black and white stripes
camel a desert animal with one or two humps on its back
llama a domesticated South American animal kept for its wool
deer a hoofed mammal whose male has antlers that fall off
moose a very large northern deer with broad flat antlers
antelope a graceful animal with horns, like a deer
gazelle a small swift graceful antelope of Africa and Asia
bison a large wild ox with a shaggy mane and a humped back
buffalo a large wild ox with curved horns
yak a large long-haired ox of Tibet
donkey a farm animal like a small horse with long ears
mule the young of a donkey and a horse
pony a small breed of horse
monkey an animal with a long tail and hands that lives in trees
gorilla the largest ape
chimpanzee an intelligent black ape of African forests
orangutan a large ape with reddish hair and very long arms
baboon a large African monkey with a doglike muzzle
lemur a furry animal of Madagascar with a long tail
kangaroo a jumping animal of Australia that carries its young in a pouch
koala a gray Australian animal that lives in trees and eats leaves
wombat a burrowing Australian animal that looks like a small bear
platypus an Australian mammal that lays eggs and has a bill
opossum a small mammal that carries its young in a pouch
armadillo a burrowing mammal covered with hard bony plates
anteater a toothless mammal with a long snout that feeds on ants
sloth a very slow mammal that hangs from trees
panda a large black and white bear of China that eats bamboo
raccoon a mammal with a dark mask around its eyes and a ringed tail
skunk a black and white mammal that sprays a bad smell
ferret a small furry animal like a weasel, often kept as a pet
seal a sea mammal with flippers that comes on shore to rest
walrus a large sea mammal with two long tusks
dolphin an intelligent sea mammal with a beaklike snout
shark a large sea fish with rough skin and many sharp teeth
ray a flat fish with winglike fins and a long tail
eel a snakelike fish with smooth slimy skin
salmon a large fish with pink flesh that swims up rivers to breed
trout a freshwater fish related to the salmon
tuna a large sea fish that is eaten as food
cod a large sea fish eaten as food
herring a small silvery fish of northern seas
sardine a small sea fish often sold in cans
carp a large freshwater fish that lives in ponds
goldfish a small golden fish kept in ponds and bowls
catfish a fish with feelers like whiskers around its mouth
swordfish a large sea fish with a long pointed upper jaw
seahorse a small upright fish whose head is shaped like that of a horse
octopus a sea animal with a soft body and eight long arms
squid a sea animal with ten arms and a long body
jellyfish a soft clear sea animal with stinging tentacles
starfish a sea animal with five arms
lobster a large sea animal with claws and a hard shell
crab a sea animal with a flat shell and two claws
shrimp a small sea animal with ten legs and a long tail
oyster a sea animal with a rough shell that may hold a pearl
clam a sea animal with two shells that lives in sand or mud
snail a slow animal with a spiral shell
slug a slow soft animal like a snail without a shell
worm a long soft animal without legs or bones
leech a worm that sucks blood
spider a small animal with eight legs that spins webs
scorpion an animal with claws and a poisonous sting in its tail
ant a small insect that lives in organized colonies
bee a flying insect that makes honey and wax
wasp a stinging insect with a narrow waist
hornet a large wasp with a painful sting
fly an insect with two wings
mosquito a small flying insect whose female bites and sucks blood
butterfly an insect with large colorful wings
moth an insect like a butterfly that flies at night
beetle an insect whose hard front wings cover its back wings
grasshopper a plant-eating insect that jumps with its long back legs
cricket a jumping insect that makes a chirping sound
locust a grasshopper that travels in great swarms
cockroach a brown insect that runs about houses at night
termite a pale insect like an ant that feeds on wood
dragonfly an insect with a long thin body and four clear wings
flea a tiny jumping insect that bites and sucks blood
louse a tiny insect that lives in the hair of people or animals
caterpillar a wormlike larva that becomes a butterfly or a moth
centipede a long flat animal with many pairs of legs
millipede a long animal with very many legs
frog a small jumping animal without a tail that lives near water
toad an animal like a frog with dry rough skin
newt a small salamander that lives in water and on land
salamander an amphibian that looks like a lizard
tadpole a young frog or toad with a tail
lizard a small reptile with four legs and a long tail
gecko a small lizard that can climb smooth walls
iguana a large tropical lizard with a crest along its back
chameleon a lizard that can change the color of its skin
snake a reptile without legs
python a large snake that squeezes its prey
cobra a venomous snake that spreads its neck into a hood
viper a poisonous snake with long fangs
rattlesnake a poisonous snake whose tail makes a rattling sound
turtle a reptile with a hard shell
tortoise a slow land turtle with a high shell
crocodile a large dangerous reptile of warm rivers with a long snout
alligator a large reptile like a crocodile with a broad snout
dinosaur an extinct reptile of very long ago
eagle a large bird of prey with broad wings
hawk a bird of prey with short rounded wings
falcon a fast bird of prey with long pointed wings
vulture a large bird that feeds on dead animals
owl a bird of prey with large eyes that hunts at night
crow a large black bird with a harsh call
magpie a black and white bird with a long tail
jay a noisy bird with bright blue feathers
robin a small songbird with a red breast
sparrow a small brown bird common near houses
canary a small yellow songbird often kept in a cage
swallow a small long-winged songbird with a forked tail
woodpecker a bird that makes holes in trees with its bill
kingfisher a bright blue bird that dives for fish
cuckoo a bird that lays its eggs in the nests of others
pigeon a plump bird often seen in cities
dove a bird like a small pigeon
parrot a brightly colored tropical bird that can copy speech
peacock a large bird with a fan of colorful tail feathers
pheasant a game bird with a very long tail
ostrich a very large African bird that runs fast but cannot fly
emu a large Australian bird that cannot fly
flamingo a tall pink wading bird with very long legs
stork a tall white wading bird with a long bill
heron a tall gray or white wading bird
crane a tall wading bird with a long neck and long legs
swan a large white water bird with a very long neck
pelican a large water bird with a pouch under its bill
albatross a very large seabird with long narrow wings
hummingbird a tiny bird that hovers while it drinks from flowers
bird an animal with feathers, wings and a beak
fish an animal that lives in water and breathes with gills
insect a small animal with six legs
reptile a cold-blooded animal with scales that lays eggs
mammal a warm-blooded animal that feeds its young with milk
amphibian an animal that lives both in water and on land
calf a young cow or bull
chick a baby bird
poodle an intelligent dog with thick curly hair
terrier a small lively dog once bred to hunt
greyhound a tall slender dog bred for racing
bulldog a strong dog with a short coat and a flat face
stallion an adult male horse
mare a female horse
bull a male of cattle
ox a strong male of cattle used for pulling loads
ram a male sheep
cub the young of a bear or a lion
jackal a wild animal of Africa related to the dog
hyena a wild African animal like a dog that eats dead animals
mongoose a small slender mammal that kills snakes
meerkat a small African animal that stands on its back legs
porcupine a rodent covered with long sharp quills
alpaca a South American animal kept for its soft wool
mammoth an extinct hairy elephant with long curved tusks
barnacle a small sea animal that sticks to ships and rocks
mussel a sea animal with a long dark double shell
scallop a sea animal with a fan-shaped shell
halibut a large flat sea fish
piranha a small South American fish with very sharp teeth
stingray a flat fish with a poisonous spine in its tail
orca a large black and white whale that hunts
beagle a small short-haired dog with long ears
husky a strong dog that pulls sleds in the snow
tarantula a large hairy spider
firefly a flying beetle that glows in the dark
cicada a large insect that makes a loud droning sound
mantis a green insect that holds its front legs as if praying
condor a very large vulture of the Americas
toucan a tropical bird with a very large colorful bill
macaw a large bright parrot with a long tail
starling a dark speckled bird that lives in large flocks
blackbird a songbird whose male is all black
cardinal a North American songbird whose male is bright red
puffin a seabird with a large brightly colored bill
kiwi a bird of New Zealand that cannot fly
unicorn an imaginary horse with one horn on its forehead
dragon an imaginary winged reptile that breathes fire
animal a living thing that can move and must eat
pet an animal kept at home for company
tree a tall plant with a wooden trunk and branches
oak a large tree with hard wood that bears acorns
pine an evergreen tree with long needles and cones
maple a tree with lobed leaves whose sap makes syrup
birch a tree with white bark
willow a tree with narrow leaves and drooping branches
ash a tree with tough pale wood
cedar a tall evergreen tree with fragrant wood
fir an evergreen tree with flat needles
spruce an evergreen tree with short needles
poplar a tall slender tree that grows fast
palm a tropical tree with a tall trunk and a crown of large leaves
cactus a desert plant with spines instead of leaves
fern a plant with feathery leaves and no flowers
bush a low plant with many woody stems
shrub a low woody plant without a trunk
vine a plant whose long stem climbs or creeps
flower the colored part of a plant that makes seeds
rose a garden plant with fragrant flowers and thorns
tulip a spring plant with one large cup-shaped flower
daisy a plant whose flowers have white petals and a yellow center
lily a tall plant with large trumpet-shaped flowers
orchid a plant with showy flowers of unusual shapes
sunflower a tall plant with a large round yellow flower
daffodil a spring plant with yellow trumpet-shaped flowers
violet a low plant with small purple flowers
iris a plant with sword-shaped leaves and large purple flowers
poppy a plant with bright red flowers
carnation a garden plant with fragrant pink, white or red flowers
dandelion a yellow wild flower whose seeds fly in the wind
marigold a garden plant with orange or yellow flowers
lotus a water plant with large pink flowers
thistle a prickly plant with purple flowers
nettle a wild plant whose leaves sting the skin
mushroom a fungus with a stem and a round cap
fungus an organism such as a mushroom that lives on dead things
leaf one of the flat green parts of a plant
petal one of the colored parts of a flower
root the part of a plant that grows under the ground
stem the long thin part of a plant that holds up the leaves
seed the small part of a plant from which a new one grows
acorn the nut of the oak
branch a part of a tree that grows out of the trunk
twig a small thin branch
trunk the thick main stem of a tree
thorn a sharp point on the stem of a plant
weed a wild plant that grows where it is not wanted
herb a plant used in cooking or medicine
redwood a very tall evergreen tree of California
magnolia a tree with large pink or white flowers
blossom the flower of a fruit tree
cone the scaly fruit of a pine or a fir
log a thick piece of the trunk of a tree
plant a living thing that grows in the ground and makes food from light
crop a plant grown by farmers for food
moss a soft green plant that grows on damp ground
grass the common green plant of lawns and fields
lavender a shrub with fragrant purple flowers
jasmine a climbing shrub with fragrant white flowers
clover a small plant whose leaves have three parts
ivy an evergreen plant that climbs walls
bamboo a very tall tropical grass with hollow woody stems
seaweed a plant that grows in the sea
wheat a grass whose seeds are ground into flour
barley a grass whose seeds are used to make beer
rye a grass whose seeds are made into dark bread
corn a tall plant whose yellow seeds grow on large ears
cotton a plant whose seeds have soft white fibers
tobacco a plant whose leaves are smoked
eucalyptus a tall Australian tree whose leaves give an oil
mistletoe a plant with white berries that grows on trees
holly an evergreen shrub with prickly leaves and red berries
bark the rough outer covering of a tree
apple a round fruit with red, yellow or green skin
banana a long curved yellow fruit
orange a round juicy citrus fruit with a thick skin
lemon a yellow oval fruit with sour juice
lime a small green sour citrus fruit
pear a sweet juicy fruit that is narrow at the top
peach a sweet juicy fruit with soft furry skin
plum a small round fruit with a smooth skin and a stone
grape a small round juicy fruit that grows in bunches
raspberry a small soft red berry
blueberry a small sweet dark-blue berry
blackberry a small soft black berry that grows on thorny bushes
cranberry a small sour red berry used for sauce
pineapple a large sweet tropical fruit with stiff leaves on top
melon a large round juicy fruit with a thick skin
watermelon a large green fruit with sweet red flesh
coconut a large tropical nut with white flesh and a hard shell
fig a sweet soft fruit with many small seeds
date the sweet brown fruit of a palm
apricot a small orange fruit like a peach
nectarine a fruit like a peach with smooth skin
grapefruit a large round yellow fruit with a slightly bitter taste
tangerine a small sweet orange that is easy to peel
pomegranate a round red fruit full of juicy seeds
avocado a green pear-shaped fruit with soft flesh
olive a small oval fruit pressed for its oil
tomato a round red fruit eaten as a vegetable
potato a round vegetable that grows under the ground
carrot a long orange root eaten as a vegetable
onion a round vegetable with many layers and a strong smell
turnip a round white root eaten as a vegetable
radish a small red root with a sharp taste
cabbage a vegetable with a round head of green leaves
cauliflower a vegetable with a large white head
cucumber a long green vegetable eaten in salads
pumpkin a large round orange fruit with a thick skin
pepper a hollow red, green or yellow vegetable
eggplant a large vegetable with a shiny purple skin
pea a small round green seed eaten as a vegetable
bean an edible seed that grows in long pods
lentil a small flat round seed eaten in soups
peanut an edible seed that ripens in a pod under the ground
almond an oval nut with a sweet taste
walnut a nut with a wrinkled edible seed in a hard shell
chestnut a smooth brown edible nut
cashew a curved nut of a tropical tree
sandwich a snack of two slices of bread with a filling between them
hamburger a flat cake of ground beef served in a bun
pizza a flat round bread baked with cheese and tomato
pie a baked dish of pastry with a filling
cake a sweet food baked from flour, sugar and eggs
cookie a small flat sweet cake
biscuit a small round baked bread
pancake a thin flat cake of batter fried in a pan
waffle a crisp cake baked between two patterned plates
doughnut a small ring-shaped cake fried in fat
muffin a small round cake baked in a cup-shaped pan
pretzel a salted bread in the shape of a knot
sausage a tube of skin filled with minced meat
omelet a dish of beaten eggs cooked in a pan
salad a cold dish of mixed raw vegetables
stew a dish of meat and vegetables cooked slowly in liquid
taco a folded tortilla with a filling
dumpling a small ball of cooked dough
noodle a long thin strip of pasta
pudding a soft sweet dish eaten as dessert
custard a sweet yellow sauce of eggs and milk
lollipop a hard candy on a stick
bagel a ring-shaped bread roll
croissant a rich flaky roll in the shape of a crescent
meatball a small ball of ground meat
kebab a dish of meat grilled on a stick
steak a thick slice of beef
egg an oval object laid by a bird, often eaten as food
snack a small meal eaten between other meals
cocktail a mixed alcoholic drink
milkshake a cold frothy drink of milk and ice cream
fruit the sweet juicy part of a plant that holds its seeds
vegetable a plant or part of a plant eaten as food
berry a small soft juicy fruit
spice a plant powder that gives food a strong taste
sauce a thick liquid eaten with food
loaf a single piece of baked bread
nut a dry fruit with a hard shell
bread a food made by baking dough
butter a soft yellow fat made from cream
cheese a solid food made from milk
milk the white liquid that a cow gives
cream the thick fatty part of milk
yogurt a thick sour food made from milk
sugar a sweet white substance used in food and drinks
salt a white substance used to season and preserve food
flour a powder made by grinding wheat
rice the white seeds of a grass eaten as food
pasta a food made from flour and water and cut into shapes
soup a liquid food made by boiling meat or vegetables
jam a sweet food made by boiling fruit with sugar
vinegar a sour liquid used to flavor and preserve food
mustard a hot yellow sauce made from seeds
ketchup a thick sauce made from tomatoes
mayonnaise a thick sauce made of egg yolks, oil and vinegar
chocolate a sweet brown food made from cocoa
ham salted meat from the leg of a pig
bacon salted or smoked meat from the back of a pig
beef the meat of cattle
pork the meat of a pig
coffee a hot drink made from roasted beans
tea a hot drink made by steeping dried leaves in water
beer a bitter alcoholic drink made from grain
wine an alcoholic drink made from grapes
whiskey a strong alcoholic drink made from grain
vodka a strong clear alcoholic drink first made in Russia
rum a strong alcoholic drink made from sugar cane
gin a strong alcoholic drink flavored with juniper berries
brandy a strong alcoholic drink made from wine
champagne a sparkling white wine from France
lemonade a sweet drink made from the juice of lemons
juice the liquid pressed from fruit or vegetables
broccoli a green vegetable that looks like a small tree
spinach a vegetable with dark green leaves
celery a vegetable with long crisp stalks
asparagus a vegetable with long edible shoots
garlic a plant whose strong-smelling bulb is used in cooking
parsley a green herb with flat or curly leaves
basil a fragrant herb used in cooking
mint an herb with cool fragrant leaves
thyme a small-leaved herb used in cooking
ginger a hot spice made from a root
cinnamon a sweet spice made from the bark of a tree
vanilla a sweet flavoring made from the pods of an orchid
porridge a soft food made by boiling oats
popcorn corn that is heated until it bursts open
dough a soft mixture of flour and water for baking
sushi a Japanese dish of cold rice with raw fish
food anything that people or animals eat to live
ice frozen water
caviar the salted eggs of a sturgeon
tofu a soft white food made from soybeans
curry a spicy dish of India
gravy a sauce made from the juice of cooked meat
lasagna a baked dish of flat pasta, meat and cheese
toast sliced bread made brown by heat
cereal a breakfast food made from grain
caramel a brown candy made of heated sugar
cocoa a brown powder made from the seeds of a tropical tree
espresso strong black coffee
oil a thick liquid that does not mix with water
lettuce a plant with large green leaves eaten in salads
candy a sweet made of sugar
squash a vegetable of the pumpkin family
jelly a sweet clear food that shakes
dinner the main meal of the day
"""
