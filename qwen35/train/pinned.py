"""Glosses written for this program, where WordNet's is long, circular, plural or of another sense.

One word a line, then its gloss, which continues "A penguin is ..." (or "Water is ...").
"""

from __future__ import annotations

_TEXT = """
rabbit a small furry mammal with long ears and a short tail
hamster a small round rodent kept as a pet
cheetah a spotted wild cat that is the fastest runner on land
snake a reptile without legs
skunk a black and white mammal that sprays a bad smell
sheep a farm mammal kept for its wool and meat
goat a horned farm mammal related to the sheep
lizard a small reptile with four legs and a long tail
swan a large white water bird with a very long neck
gull a white seabird with long wings
porcupine a rodent covered with long sharp quills
toucan a tropical bird with a very large colorful bill
amphibian an animal that lives both in water and on land
moth an insect like a butterfly that flies at night
centipede a long animal with one pair of legs on each part of its body
dragonfly an insect with a long thin body and four clear wings
lemur a furry animal of Madagascar with a long tail
ox a strong male of cattle used for pulling loads
ram a male sheep
jackal a wild animal of Africa related to the dog
alpaca a South American animal kept for its soft wool
mushroom a fungus with a stem and a round cap
fungus an organism such as a mushroom that lives on dead things
dandelion a yellow wild flower whose seeds fly in the wind
geranium a garden plant often grown in pots
ivy an evergreen plant that climbs walls
moss a soft green plant that grows on damp ground
fern a plant with feathery leaves and no flowers
banana a long curved yellow fruit
raspberry a small soft red berry
tomato a round red fruit eaten as a vegetable
sausage minced meat in a tube of skin
omelet a dish of beaten eggs cooked in a pan
dumpling a small ball of cooked dough
pretzel a salted bread in the shape of a knot
snack a small meal eaten between other meals
rice the white seeds of a grass eaten as food
pasta a food made from flour and water and cut into shapes
wine an alcoholic drink made from grapes
lemonade a sweet drink made from the juice of lemons
broccoli a green vegetable that looks like a small tree
celery a vegetable with long crisp stalks
mirror a glass surface that shows a reflection
typewriter a machine with keys for printing letters on paper
scooter a small vehicle with two wheels and a board to stand on
helicopter an aircraft with turning blades on top
rudder a flat board at the back of a boat used for steering
hat a covering for the head
supermarket a large shop that sells food
fog a thick cloud near the ground
photosynthesis the way plants make food from light
festival a day or period of celebration
patience the ability to wait calmly
anagram a word made by changing the order of the letters of another
barnacle a small sea animal that sticks to ships and rocks
piranha a small South American fish with very sharp teeth
herring a small silvery fish of northern seas
reed a tall grass that grows in water
boxing the sport of fighting with the fists
goldfish a small golden fish kept in ponds and bowls
lobster a large sea animal with claws and a hard shell
swallow a small long-winged songbird with a forked tail
crane a tall wading bird with a long neck and long legs
terrier a small lively dog once bred to hunt
greyhound a tall slender dog bred for racing
collie a long-haired dog that herds sheep
cub the young of a bear or a lion
maple a tree with lobed leaves whose sap makes syrup
oak a large tree with hard wood that bears acorns
willow a tree with narrow leaves and drooping branches
elm a tall shade tree
ash a tree with tough pale wood
fir an evergreen tree with flat needles
spruce an evergreen tree with short needles
pine an evergreen tree with long needles and cones
birch a tree with white bark
holly an evergreen shrub with prickly leaves and red berries
lily a tall plant with large trumpet-shaped flowers
tulip a spring plant with one large cup-shaped flower
daisy a plant whose flowers have white petals and a yellow center
poppy a plant with bright red flowers
clover a small plant whose leaves have three parts
lotus a water plant with large pink flowers
lavender a shrub with fragrant purple flowers
wheat a grass whose seeds are ground into flour
barley a grass whose seeds are used to make beer
cotton a plant whose seeds have soft white fibers
corn a tall plant whose yellow seeds grow on large ears
tobacco a plant whose leaves are smoked
apple a round fruit with red, yellow or green skin
grape a small round juicy fruit that grows in bunches
fig a sweet soft fruit with many small seeds
carrot a long orange root eaten as a vegetable
lettuce a plant with large green leaves eaten in salads
cucumber a long green vegetable eaten in salads
pumpkin a large round orange fruit with a thick skin
pepper a hollow red, green or yellow vegetable
almond an oval nut with a sweet taste
eggplant a large vegetable with a shiny purple skin
bean an edible seed that grows in long pods
hamburger a flat cake of ground beef served in a bun
cake a sweet food baked from flour, sugar and eggs
salad a cold dish of mixed raw vegetables
steak a thick slice of beef
candy a sweet made of sugar
milk the white liquid that a cow gives
flour a powder made by grinding wheat
bread a food made by baking dough
cheese a solid food made from milk
mustard a hot yellow sauce made from seeds
bird an animal with feathers, wings and a beak
fish an animal that lives in water and breathes with gills
albatross a very large seabird with long narrow wings
pigeon a plump bird often seen in cities
stork a tall white wading bird with a long bill
calf a young cow or bull
anchovy a small salty fish of the herring family
kangaroo a jumping animal of Australia that carries its young in a pouch
bee a flying insect that makes honey and wax
ant a small insect that lives in organized colonies
wasp a stinging insect with a narrow waist
fly an insect with two wings
snail a slow animal with a spiral shell
squid a sea animal with ten arms and a long body
crab a sea animal with a flat shell and two claws
butterfly an insect with large colorful wings
turtle a reptile with a hard shell
dinosaur an extinct reptile of very long ago
airplane a flying vehicle with fixed wings and engines
raft a flat floating platform of logs
yacht a sailing boat used for cruising or racing
motor a machine that makes something move
drill a tool for making holes
wrench a tool for turning nuts and bolts
hoe a long-handled tool for breaking up soil
zipper a fastener with two rows of teeth
crayon a stick of colored wax for drawing
scarf a cloth worn around the neck
necklace a chain or string of beads worn around the neck
ski one of two long boards for gliding over snow
vase a jar for flowers
painting a picture made with paints
abacus a frame with sliding beads used for counting
lens a curved piece of glass that bends light
thermostat a device that keeps a temperature steady
scarecrow a figure in a field that frightens birds
barn a farm building for animals and hay
dam a wall that holds back the water of a river
balcony a platform on the outside of a building
beach a strip of sand beside the sea
avalanche a mass of snow that slides down a mountain
tsunami a very large sea wave caused by an earthquake
leather a material made from the skin of animals
concrete a hard building material of cement, sand and stones
dew small drops of water that form on cool grass
digestion the process of breaking down food in the body
hockey a game played on ice with sticks and a puck
surfing the sport of riding waves on a board
astrology the belief that the stars guide our lives
pronoun a word that takes the place of a noun
navy the warships and sailors of a country
hair the thin threads that grow on the head
eye the organ of sight
hand the part of the arm beyond the wrist
arm the part of the body from the shoulder to the hand
leg the part of the body on which a person stands
war fighting between countries with armies
happy feeling joy or pleasure
penguin a flightless seabird of cold southern regions that swims with its wings
whale a very large mammal that lives in the sea
cat a small furry mammal with sharp claws, often kept as a pet
dog a domesticated mammal related to the wolf, often kept as a pet
horse a large hoofed mammal that people ride
bat a flying mammal that is active at night
llama a domesticated South American animal kept for its wool
wolf a predatory wild mammal related to the dog that hunts in packs
bear a massive furry mammal with strong claws
elephant a very large mammal with a long trunk and tusks
giraffe the tallest living animal, with a very long neck
deer a hoofed mammal whose male has antlers that fall off
goose a large web-footed water bird with a long neck
pony a small breed of horse
gorilla the largest ape
anteater a toothless mammal with a long snout that feeds on ants
dolphin an intelligent sea mammal with a beaklike snout
ray a flat fish with winglike fins and a long tail
eel a snakelike fish with smooth slimy skin
trout a freshwater fish related to the salmon
pike a large freshwater fish with a long snout and sharp teeth
perch a spiny-finned freshwater fish
catfish a fish with feelers like whiskers around its mouth
seahorse a small upright fish whose head is shaped like that of a horse
worm a long soft animal without legs or bones
mite a tiny animal related to the spider
mosquito a small flying insect whose female bites and sucks blood
beetle an insect whose hard front wings cover its back wings
caterpillar a wormlike larva that becomes a butterfly or a moth
eagle a large bird of prey with broad wings
woodpecker a bird that makes holes in trees with its bill
reptile a cold-blooded animal with scales that lays eggs
cuttlefish a sea animal with ten arms and an inner shell
stingray a flat fish with a poisonous spine in its tail
mastiff a very large and powerful breed of dog
spider a small animal with eight legs that spins webs
salamander an amphibian that looks like a lizard
peacock a large bird with a fan of colorful tail feathers
crow a large black bird with a harsh call
parrot a brightly colored tropical bird that can copy speech
shrimp a small sea animal with ten legs and a long tail
oyster a sea animal with a rough shell that may hold a pearl
hedgehog a small mammal covered with sharp spines
baboon a large African monkey with a doglike muzzle
opossum a small mammal that carries its young in a pouch
lynx a wild cat with a short tail and tufted ears
newt a small salamander that lives in water and on land
iguana a large tropical lizard with a crest along its back
python a large snake that squeezes its prey
cobra a venomous snake that spreads its neck into a hood
tortoise a slow land turtle with a high shell
falcon a fast bird of prey with long pointed wings
lark a small brown songbird
quail a small round game bird
partridge a plump game bird
locust a grasshopper that travels in great swarms
starfish a sea animal with five arms
cedar a tall evergreen tree with fragrant wood
palm a tropical tree with a tall trunk and a crown of large leaves
cactus a desert plant with spines instead of leaves
rose a garden plant with fragrant flowers and thorns
orchid a plant with showy flowers of unusual shapes
sunflower a tall plant with a large round yellow flower
iris a plant with sword-shaped leaves and large purple flowers
marigold a garden plant with orange or yellow flowers
jasmine a climbing shrub with fragrant white flowers
thistle a prickly plant with purple flowers
seaweed a plant that grows in the sea
eucalyptus a tall Australian tree whose leaves give an oil
magnolia a tree with large pink or white flowers
crocus a small spring plant with purple or yellow flowers
cone the scaly fruit of a pine or a fir
log a thick piece of the trunk of a tree
orange a round juicy citrus fruit with a thick skin
lime a small green sour citrus fruit
blueberry a small sweet dark-blue berry
date the sweet brown fruit of a palm
olive a small oval fruit pressed for its oil
cabbage a vegetable with a round head of green leaves
squash a vegetable of the pumpkin family
pea a small round green seed eaten as a vegetable
lentil a small flat round seed eaten in soups
peanut an edible seed that ripens in a pod under the ground
walnut a nut with a wrinkled edible seed in a hard shell
chestnut a smooth brown edible nut
waffle a crisp cake baked between two patterned plates
stew a dish of meat and vegetables cooked slowly in liquid
jelly a sweet clear food that shakes
soup a liquid food made by boiling meat or vegetables
coffee a hot drink made from roasted beans
tea a hot drink made by steeping dried leaves in water
champagne a sparkling white wine from France
juice the liquid pressed from fruit or vegetables
asparagus a vegetable with long edible shoots
basil a fragrant herb used in cooking
mint an herb with cool fragrant leaves
thyme a small-leaved herb used in cooking
ginger a hot spice made from a root
cinnamon a sweet spice made from the bark of a tree
vanilla a sweet flavoring made from the pods of an orchid
porridge a soft food made by boiling oats
curry a spicy dish of India
dictionary a book that explains the meanings of words
encyclopedia a work with articles on every subject
calendar a table of the days and months of a year
loudspeaker a device that turns electrical signals into sound
ferry a boat that carries people or vehicles across water
violin a musical instrument with four strings played with a bow
swing a hanging seat that moves back and forth
skate a shoe with a blade or wheels for gliding
arrow a thin pointed stick that is shot from a bow
rifle a gun with a long barrel
photograph a picture made with a camera
apartment a set of rooms to live in within a larger building
magnet a piece of iron that attracts other iron
radar a device that finds objects by reflected radio waves
plow a farm tool that turns over the soil
poster a large printed picture put up on a wall
coin a flat round piece of metal used as money
medal a metal disk given as an award
hovercraft a vehicle that travels on a cushion of air
bobbin a small cylinder around which thread is wound
spool a cylinder around which thread or wire is wound
kilt a knee-length pleated skirt worn by Scottish men
bridge a structure that carries a road over a river or a valley
railway a line of tracks on which trains run
harbor a place where ships are safe from the open sea
dock a place where a ship is loaded or repaired
dungeon a dark underground prison cell
table a piece of furniture with a flat top and legs
mug a cup with a handle
plate a flat dish from which food is eaten
refrigerator a kitchen appliance that keeps food cold
hammer a hand tool with a heavy head used to drive nails
spade a hand tool with a flat blade for digging
bolt a metal pin that is screwed into a nut
hinge a joint on which a door turns
key a shaped piece of metal that opens a lock
needle a thin pointed piece of steel used in sewing
pin a short thin pointed piece of metal used as a fastener
button a small disk sewn on clothes as a fastener
scissors a tool with two crossing blades for cutting
barrel a large round wooden container with flat ends
book a set of printed pages bound together
notebook a book with blank pages to write in
camera a device for taking photographs
binoculars an optical instrument with a lens for each eye
keyboard a device with rows of keys for typing
monitor a screen that shows the output of a computer
telephone a device for speaking with people far away
train a line of railway cars pulled by an engine
tram a passenger vehicle that runs on rails in a street
van a covered vehicle for carrying goods
parachute a cloth canopy that slows a fall through the air
sail a large piece of cloth that catches the wind to move a boat
ladder a frame with rungs for climbing up and down
shorts trousers that end at or above the knee
glove a covering for the hand with a part for each finger
tie a strip of cloth worn around the collar of a shirt
belt a band of leather worn around the waist
ring a circular band worn on a finger
harp a musical instrument with strings stretched in a large frame
whistle a small device that makes a high sound when blown into
slide a smooth sloping surface that children go down
net an open fabric of crossing cords used to catch fish
bow a bent piece of wood with a string for shooting arrows
wedge a piece of wood or metal that is thin at one edge
pulley a wheel with a groove for a rope used to lift things
hut a small simple house
cabin a small wooden house
cage an enclosure made of bars for animals
aquarium a glass tank in which fish are kept
organ a musical instrument with pipes and a keyboard
pendulum a hanging weight that swings back and forth
laser a device that makes a narrow beam of strong light
satellite an object that orbits the earth
hose a flexible pipe that carries water
bathtub a large open container in which a person bathes
drain a pipe that carries water away
pipe a long tube through which water or gas flows
stamp a small piece of paper that shows postage is paid
carousel a turning platform with seats shaped like animals
snorkel a tube for breathing under water
gondola a long narrow boat used on the canals of Venice
carriage a four-wheeled vehicle pulled by horses
palette a board on which a painter mixes colors
treadmill an exercise machine with a moving belt to walk on
head the part of the body that holds the face and the brain
face the front of the head
elbow the joint in the middle of the arm
wrist the joint between the hand and the arm
ankle the joint between the foot and the leg
liver a large organ that makes bile
nerve a bundle of fibers that carries signals to the brain
spine the row of bones down the back
tooth a hard white structure in the jaw used for biting
tongue the movable organ of taste in the mouth
brain the organ in the head that thinks and feels
tail the part at the rear of the body of an animal
paw the foot of an animal with claws
hoof the hard foot of a horse or a cow
claw a sharp curved nail on the foot of an animal
wing a limb with which a bird or an insect flies
feather one of the light growths that cover a bird
beak the hard pointed mouth of a bird
horn a hard pointed growth on the head of an animal
antler one of the branched horns of a deer
fin a thin part with which a fish swims
gill the organ with which a fish breathes
shell the hard covering of a snail or a turtle
fur the thick hair of an animal
mane the long hair on the neck of a horse or a lion
grandfather the father of your father or mother
grandmother the mother of your father or mother
dentist a doctor who treats teeth
cook a person who prepares food
enemy a person who wishes to harm another
captain the officer in command of a ship
chemist a scientist trained in chemistry
historian a scholar who studies the past
writer a person who writes books or articles
author a person who has written a book
knight a soldier of the Middle Ages in armor on a horse
monk a man who lives in a religious community
nun a woman who lives in a religious community
pirate a person who robs ships at sea
shepherd a person who looks after sheep
barber a person who cuts hair
clown a performer who makes people laugh
wizard a man who has magic powers
giant an imaginary person of very great size
host a person who receives guests
nomad a person who moves from place to place
sea a large body of salt water
lagoon a shallow lake beside the sea
galaxy a very large system of stars
sun the star around which the earth moves
earth the planet on which we live
ocean a very large body of salt water
pearl a smooth round jewel that forms inside an oyster
ivory the hard white material of the tusks of elephants
blood the red liquid that the heart pumps through the body
saliva the watery liquid made in the mouth
vaccine a substance that protects the body against a disease
penicillin a medicine made from mold that kills bacteria
insulin a substance that controls sugar in the blood
resin a sticky substance that comes from trees
starch a white substance found in potatoes and rice
sweat salty liquid that comes out through the skin
smoke a cloud of small particles from something burning
quartz a hard clear mineral
plastic a light artificial material that can be shaped
rust a reddish-brown coating that forms on wet iron
frost thin white ice that forms on cold surfaces
thunder the loud noise that follows lightning
magnetism the force with which a magnet attracts iron
fermentation the process in which sugar turns into alcohol
sound vibrations in the air that can be heard
weather the state of the air at a place and time
tornado a violent storm with a turning funnel of wind
rainbow an arc of colors in the sky after rain
tide the rise and fall of the sea twice a day
echo a sound that comes back from a wall or a hill
earthquake a violent shaking of the ground
cloud a mass of tiny drops of water in the sky
eclipse the hiding of the sun or the moon by the other
wave a moving ridge on the surface of the sea
shadow a dark area where light is blocked
oval a shape like that of an egg
ellipse a closed curve like a flattened circle
spiral a curve that winds around a center
helix a curve shaped like a spring
parabola the curve that a thrown ball follows
circle a round shape whose edge is everywhere as far from its center
square a shape with four equal sides and four right angles
rectangle a shape with four sides and four right angles
cube a solid with six equal square faces
sphere a round solid like a ball
second a sixtieth part of a minute
midnight twelve at night
picnic a meal eaten outdoors
parade a public procession with music
concert a public performance of music
handshake the act of shaking hands as a greeting
marathon a running race of about 26 miles
expedition a long journey made for a purpose
race a contest of speed
wedding the ceremony at which two people marry
swimming the sport of moving through water
yoga a system of exercises for body and mind from India
volleyball a game in which two teams hit a ball over a high net
bowling a game in which balls are rolled at pins
football a game in which two teams kick or carry a ball
soccer a game in which two teams kick a ball into a goal
badminton a game in which a light feathered ball is hit over a net
medicine the science of treating illness
calculus the mathematics of change and motion
statistics the mathematics of collecting and studying numbers
chemistry the science of substances and how they change
economics the science of money and trade
jealousy the painful wish to have what another has
honesty the quality of telling the truth
anger the strong feeling of being annoyed
sadness the feeling of being unhappy
happiness the feeling of being glad
disgust a strong feeling of dislike
pain an unpleasant feeling in a part of the body that is hurt
beauty the quality that gives pleasure to the senses
question a sentence that asks for an answer
riddle a puzzling question asked as a game
symphony a long piece of music for an orchestra
map a drawing that shows where places are
comma a punctuation mark that separates parts of a sentence
synonym a word with the same meaning as another
antonym a word with the opposite meaning of another
recipe a list of directions for making a dish
passport a document that lets a person travel abroad
email a message sent from one computer to another
fable a short story with animals that teaches a lesson
metaphor a figure of speech that calls one thing another
magazine a thin book published every week or month
volt the unit of electric force
ampere the unit of electric current
trillion the number that is a one followed by 12 zeros
ounce a unit of weight equal to one sixteenth of a pound
pint a unit of capacity equal to half a quart
measles a contagious disease with small red spots on the skin
amnesia a loss of memory
tuberculosis a disease that affects the lungs
mumps a contagious disease with swelling of the neck
family a group of parents and their children
orchestra a large group of musicians playing together
flock a group of sheep or birds
swarm a large group of flying insects
pack a group of wolves or dogs
jungle a thick tropical forest
forest a large area covered with trees
fleet a group of ships
team a group of people who work or play together
laugh make sounds that show joy or amusement
sleep rest with the eyes closed and the mind not awake
write put words on paper
yawn open the mouth wide when tired
fry cook in hot fat
sew join cloth with needle and thread
knit make cloth by linking loops of yarn
lend give for a time
borrow get something for a time and then give it back
forgive stop being angry about a fault
forget fail to remember
bald having no hair on the head
lazy not willing to work
"""

PINNED: dict[str, str] = {}
for _line in _TEXT.strip().splitlines():
    _word, _, _gloss = _line.partition(" ")
    PINNED[_word] = _gloss

DROPPED = frozenset(
    [
        "pliers",
        "bellows",
        "tick",
        "rosin",
        "plankton",
        "shrub",
        "grass",
        "boxes",
        "chrysanthemum",
        "sponge",
        "coral",
        "bark",
        "flower",
        "bulb",
        "lead",
        "stairs",
        "trousers",
        "jeans",
        "uniform",
        "pajamas",
        "tank",
        "scale",
        "capital",
        "nut",
        "lock",
        "cape",
        "spring",
        "march",
        "May",
    ]
)
"""Words whose senses cannot be told apart by kind, left out."""
