"""The words the default model is taught, by kind.

A kind names the WordNet lexicographer files its senses are taken from (so that "whale" is the animal and not
the person), whether its words take an article ("A penguin is ...") or none ("Water is ..."), and how a
reasoning sentence names it. Words are chosen by hand: things a person trying a dictionary would ask about.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One group of words: `name` in a reasoning block, WordNet `files` in order, `countable` or not."""

    name: str
    files: tuple[str, ...]
    countable: bool
    words: tuple[str, ...]


def _kind(name: str, files: str, countable: bool, words: str) -> Kind:
    return Kind(name, tuple(files.split()), countable, tuple(words.split()))


KINDS: tuple[Kind, ...] = (
    _kind(
        "an animal",
        "noun.animal",
        True,
        """
penguin whale dog cat horse cow pig sheep goat chicken duck goose turkey rabbit hare mouse rat squirrel
beaver hamster hedgehog mole bat fox wolf bear lion tiger leopard cheetah jaguar lynx panther elephant
rhinoceros hippopotamus giraffe zebra camel llama deer elk moose reindeer antelope gazelle bison buffalo
yak donkey mule pony monkey gorilla chimpanzee orangutan baboon lemur kangaroo koala wombat platypus
opossum armadillo anteater sloth panda raccoon skunk badger otter weasel ferret mink seal walrus dolphin
porpoise manatee shark ray eel salmon trout tuna cod herring sardine carp pike perch goldfish catfish
swordfish seahorse octopus squid jellyfish starfish lobster crab shrimp oyster clam snail slug worm
leech spider scorpion tick mite ant bee wasp hornet fly mosquito butterfly moth beetle ladybug
grasshopper cricket locust cockroach termite dragonfly flea louse caterpillar centipede millipede frog
toad newt salamander tadpole lizard gecko iguana chameleon snake python cobra viper rattlesnake turtle
tortoise crocodile alligator dinosaur eagle hawk falcon vulture owl crow raven magpie jay robin sparrow
finch canary swallow swift lark nightingale wren woodpecker kingfisher cuckoo pigeon dove parrot peacock
pheasant quail partridge ostrich emu flamingo stork heron crane swan pelican gull albatross hummingbird
bird fish insect reptile mammal amphibian puppy kitten calf lamb foal piglet chick poodle terrier
spaniel greyhound bulldog collie dachshund stallion mare bull ox ram rooster hen drake cub fawn coyote
jackal hyena mongoose meerkat porcupine chipmunk gopher lemming vole shrew tapir okapi oryx ibex alpaca
dromedary mastodon mammoth pterodactyl coral sponge plankton barnacle mussel scallop cuttlefish anchovy
haddock halibut flounder sturgeon piranha barracuda stingray orca beagle husky mastiff tarantula aphid
firefly cicada mantis earthworm condor kite buzzard osprey toucan macaw cockatoo budgerigar starling
blackbird thrush bluebird cardinal puffin kiwi cormorant
""",
    ),
    _kind(
        "a plant",
        "noun.plant",
        True,
        """
tree oak pine maple birch willow elm beech ash cedar fir spruce poplar palm cactus fern moss grass bush
shrub vine flower rose tulip daisy lily orchid sunflower daffodil violet iris poppy carnation lavender
dandelion marigold geranium jasmine lotus thistle clover ivy nettle bamboo seaweed mushroom toadstool
fungus leaf petal root stem seed bud acorn branch twig trunk bark thorn weed herb wheat barley rye oat
corn cotton flax hemp tobacco sequoia redwood eucalyptus hawthorn hazel juniper holly mistletoe magnolia
chrysanthemum hyacinth crocus begonia petunia foxglove buttercup primrose heather reed sapling blossom
cone log stalk bulb
""",
    ),
    _kind(
        "a food",
        "noun.food noun.plant",
        True,
        """
apple banana orange lemon lime pear peach plum cherry grape strawberry raspberry blueberry blackberry
cranberry pineapple mango papaya melon watermelon coconut fig date apricot nectarine grapefruit
tangerine pomegranate avocado olive tomato potato carrot onion turnip radish beet cabbage cauliflower
lettuce cucumber pumpkin squash pepper eggplant pea bean lentil peanut almond walnut chestnut pecan
cashew sandwich hamburger pizza pie cake cookie biscuit pancake waffle doughnut muffin pretzel sausage
omelet salad stew taco burrito dumpling noodle pudding custard jelly candy lollipop bagel croissant
meatball kebab cupcake tart cracker steak egg dessert breakfast lunch dinner supper meal snack cocktail
milkshake
""",
    ),
    _kind(
        "a food",
        "noun.food noun.substance",
        False,
        """
bread butter cheese milk cream yogurt honey sugar salt flour rice pasta spaghetti macaroni soup jam
syrup vinegar mustard ketchup mayonnaise chocolate ham bacon beef pork mutton veal venison coffee tea
beer wine whiskey vodka rum gin brandy champagne cider lemonade juice broccoli spinach celery asparagus
garlic parsley basil mint thyme ginger cinnamon vanilla oatmeal porridge popcorn dough sushi meat food
water ice garnish margarine lard caviar tofu sauerkraut curry gravy
""",
    ),
    _kind(
        "a thing people make",
        "noun.artifact",
        True,
        """
house cottage castle palace church cathedral temple mosque school hospital hotel factory barn tent tower
bridge tunnel road street highway railway harbor dock pier canal dam lighthouse windmill fence wall gate
door window roof floor ceiling chimney stairs ladder elevator kitchen bedroom bathroom attic cellar
garage garden balcony library museum theater stadium prison dungeon fountain chair table desk bed sofa
bench stool cupboard drawer shelf bookcase wardrobe mirror lamp candle lantern clock watch carpet rug
curtain blanket pillow mattress towel basket bucket bottle jar cup mug glass bowl plate saucer spoon
fork knife pan pot kettle oven stove refrigerator toaster blender dishwasher broom mop brush sponge
hammer saw drill wrench screwdriver pliers chisel axe shovel spade rake hoe wheelbarrow nail screw bolt
nut hinge lock key chain rope string thread needle pin button zipper scissors razor comb umbrella bag
purse wallet suitcase backpack box crate barrel sack envelope pencil pen crayon eraser ruler compass
book notebook dictionary encyclopedia calendar camera telescope microscope binoculars thermometer
barometer scale computer keyboard printer monitor telephone television radio microphone loudspeaker
robot calculator typewriter battery bulb flashlight car truck bus taxi motorcycle bicycle tricycle
scooter van tractor ambulance train locomotive tram airplane helicopter glider balloon rocket parachute
ship boat canoe kayak raft yacht ferry submarine sailboat tanker anchor oar sail rudder wheel tire
engine motor brake pedal piston gear shirt blouse sweater jacket coat vest skirt dress trousers jeans
shorts sock shoe boot sandal slipper glove mitten hat cap helmet scarf tie belt apron uniform pajamas
crown necklace bracelet ring earring brooch piano violin guitar cello harp flute clarinet oboe trumpet
trombone tuba saxophone drum cymbal xylophone accordion banjo harmonica organ bell whistle ball doll
puppet kite toy swing slide sled skate ski racket bat net sword dagger spear bow arrow shield cannon
pistol rifle bomb tank missile lever pulley wedge bowling statue painting portrait photograph vase
pyramid igloo hut cabin skyscraper apartment bakery pharmacy restaurant supermarket greenhouse stable
kennel cage aquarium zoo trap cradle crib stroller wheelchair crutch bandage syringe stethoscope ax
anvil bellows furnace fireplace hearth lute lyre bagpipe bassoon bugle kazoo tambourine gong abacus
sundial hourglass stopwatch pendulum magnet lens prism periscope laser radar satellite antenna
transistor thermostat escalator crane bulldozer plow sickle scythe pitchfork hose sprinkler faucet sink
bathtub toilet shower drain pipe valve pump funnel sieve ladle spatula corkscrew teapot coaster goblet
chalice tray quilt hammock tablecloth napkin doormat tapestry flag banner poster stamp coin medal trophy
trampoline seesaw carousel treadmill dumbbell snorkel surfboard skateboard snowshoe snowmobile gondola
dinghy galleon catamaran hovercraft limousine jeep minivan convertible wagon carriage chariot rickshaw
jigsaw mousetrap scarecrow padlock doorbell doorknob thimble bobbin spool loom paintbrush easel palette
kimono turban sombrero beret tuxedo cardigan poncho kilt sari corset
""",
    ),
    _kind(
        "a part of the body",
        "noun.body",
        True,
        """
head face eye ear nose mouth lip tooth tongue chin cheek forehead neck throat shoulder arm elbow wrist
hand finger thumb chest rib waist hip leg knee ankle foot toe heel heart lung stomach liver kidney brain
skull bone muscle nerve vein artery skin hair beard mustache eyebrow eyelash eyelid nostril palm knuckle
spine skeleton tail paw hoof claw wing feather beak horn antler fin gill shell fur mane jaw gum retina
pupil cornea pancreas bladder intestine tendon
""",
    ),
    _kind(
        "a person",
        "noun.person",
        True,
        """
baby child boy girl man woman mother father brother sister son daughter uncle aunt cousin nephew niece
grandfather grandmother husband wife bride widow twin orphan friend enemy neighbor teacher student
doctor nurse dentist surgeon lawyer judge policeman firefighter soldier sailor captain pilot farmer
gardener baker butcher cook chef waiter carpenter plumber electrician mechanic engineer architect
scientist chemist physicist biologist astronomer mathematician philosopher historian writer author poet
painter sculptor musician singer dancer actor actress king queen prince princess emperor knight priest
monk nun pope bishop thief pirate spy hunter shepherd cowboy blacksmith tailor cobbler barber librarian
journalist photographer astronaut athlete clown magician wizard giant dwarf hero villain tourist
passenger customer merchant banker miner lumberjack beggar hermit nomad refugee president senator mayor
ambassador referee goalkeeper jockey acrobat juggler ventriloquist vegetarian genius optimist pessimist
coward tyrant rebel guest host tenant landlord
""",
    ),
    _kind(
        "a place or natural thing",
        "noun.object noun.location noun.artifact",
        True,
        """
mountain hill valley canyon cliff cave volcano glacier iceberg river stream lake pond ocean sea bay
beach coast island peninsula continent desert plain swamp marsh waterfall spring geyser reef lagoon
planet moon star comet meteor galaxy constellation sun earth sky horizon village town city capital
country county park pasture meadow field orchard vineyard rock stone pebble boulder crystal oasis fjord
delta dune plateau cape crater asteroid nebula earthworm nest beehive anthill cobweb
""",
    ),
    _kind(
        "a substance",
        "noun.substance noun.object noun.artifact noun.phenomenon noun.plant",
        False,
        """
gold silver iron copper tin lead zinc aluminum nickel mercury platinum uranium steel brass bronze oxygen
hydrogen nitrogen carbon helium neon chlorine sulfur iodine sodium potassium calcium silicon phosphorus
air steam sand clay mud soil dust ash coal petroleum gasoline kerosene plastic rubber leather silk wool
linen nylon velvet paper cardboard ink glue wax soap cement concrete marble granite limestone chalk
quartz diamond ruby emerald sapphire pearl amber jade ivory wood bamboo blood sweat saliva poison
vaccine penicillin aspirin insulin caffeine alcohol ammonia methane ozone smoke fog mist dew lava resin
starch protein
""",
    ),
    _kind(
        "something in nature",
        "noun.phenomenon noun.event noun.process noun.object noun.state",
        False,
        """
rain snow hail frost lightning thunder wind electricity gravity magnetism light heat sound radiation
weather fire rust erosion evaporation photosynthesis fermentation digestion
""",
    ),
    _kind(
        "something in nature",
        "noun.phenomenon noun.event noun.object noun.state",
        True,
        """
storm hurricane tornado blizzard avalanche earthquake flood drought rainbow cloud eclipse tide wave
shadow echo breeze gale typhoon tsunami explosion whirlpool
""",
    ),
    _kind(
        "a shape",
        "noun.shape noun.location noun.attribute",
        True,
        """
circle square triangle rectangle pentagon hexagon octagon oval ellipse sphere cube cylinder cone spiral
helix rhombus trapezoid polygon diameter radius angle curve parabola
""",
    ),
    _kind(
        "a time",
        "noun.time noun.event",
        True,
        """
second minute hour day week month year decade century millennium morning afternoon evening night
midnight noon dawn dusk weekend birthday holiday anniversary season
""",
    ),
    _kind(
        "a time",
        "noun.time",
        False,
        """
summer winter autumn Monday January February March April June July August September October November
December Christmas Easter Halloween tomorrow yesterday
""",
    ),
    _kind(
        "an activity",
        "noun.act noun.event",
        True,
        """
game race wedding funeral concert parade picnic war battle journey voyage expedition festival marathon
tournament murder robbery burglary crime experiment surgery massage haircut somersault kiss hug
handshake
""",
    ),
    _kind(
        "an activity",
        "noun.act noun.cognition",
        False,
        """
football baseball basketball tennis golf hockey soccer chess poker boxing wrestling fencing archery
swimming skiing surfing gymnastics yoga karate judo dancing ballet cooking fishing hunting farming
agriculture gardening carpentry medicine piracy arson smuggling bowling cricket rugby badminton
volleyball croquet lacrosse
""",
    ),
    _kind(
        "a field of study",
        "noun.cognition noun.act noun.communication",
        False,
        """
mathematics arithmetic algebra geometry calculus statistics physics chemistry biology astronomy geology
botany zoology psychology philosophy history geography economics linguistics logic astrology meteorology
ecology anatomy
""",
    ),
    _kind(
        "a feeling",
        "noun.feeling noun.state noun.attribute",
        False,
        """
love joy anger fear hate jealousy envy pride shame guilt sadness happiness hope surprise disgust boredom
loneliness courage honesty patience kindness hunger thirst pain beauty wisdom
""",
    ),
    _kind(
        "words and signs",
        "noun.communication",
        True,
        """
word sentence letter alphabet vowel consonant noun verb adjective adverb pronoun question answer joke
riddle story novel poem song hymn lullaby symphony opera diary newspaper magazine map recipe menu ticket
passport email proverb fable myth legend biography autobiography comma synonym antonym palindrome
anagram metaphor simile
""",
    ),
    _kind(
        "an amount",
        "noun.quantity",
        True,
        """
dozen million billion trillion inch mile meter kilometer gram kilogram ounce ton liter gallon pint watt
volt ampere kilobyte megabyte gigabyte
""",
    ),
    _kind(
        "an illness",
        "noun.state",
        False,
        """
influenza pneumonia malaria measles mumps cancer diabetes asthma anemia insomnia amnesia scurvy leprosy
rabies arthritis bronchitis tuberculosis smallpox
""",
    ),
    _kind(
        "a group",
        "noun.group",
        True,
        """
family army navy orchestra choir jury parliament company committee crowd herd flock swarm pack forest
jungle fleet team government
""",
    ),
    _kind(
        "a verb",
        "verb",
        False,
        """
swim run jump sing sleep eat drink write read laugh cry sneeze cough yawn whisper shout climb crawl bake
fry sew knit borrow lend steal forget remember forgive apologize
""",
    ),
    _kind(
        "an adjective",
        "adj",
        False,
        """
happy sad angry brave lazy hungry thirsty empty ancient modern dangerous invisible transparent enormous
tiny honest polite rude fragile nocturnal edible deaf bald
""",
    ),
)
"""Every kind, in the order a word is looked up: a word listed twice belongs to the first kind."""

_FIRST = """
lion tiger leopard fox rabbit monkey zebra camel koala kangaroo panda otter beaver squirrel mouse rat
cow pig chicken duck turkey donkey mule frog toad shark salmon tuna owl hawk ostrich robin raven octopus
jellyfish crocodile alligator puppy kitten chick lamb foal hen rooster bull tree seed root branch acorn
lemon pear peach plum cherry strawberry pineapple coconut potato onion beet sandwich pizza pie cookie
pancake doughnut muffin egg breakfast lunch dinner butter cream honey sugar salt beef pork chocolate
beer water house castle church school hospital hotel factory road tent tower tunnel door window roof
floor kitchen bedroom bathroom attic library museum restaurant zoo chair desk bed sofa bench shelf lamp
candle clock watch carpet curtain blanket pillow towel bottle cup glass bowl spoon fork knife pot kettle
oven stove broom saw screwdriver shovel nail rope string thread razor comb umbrella wallet suitcase
backpack box pencil pen eraser ruler compass telescope microscope thermometer computer printer radio
television robot calculator flashlight car truck bus taxi motorcycle bicycle tractor ambulance rocket
ship boat canoe submarine anchor wheel engine shirt sweater jacket coat skirt dress sock shoe boot
sandal cap helmet piano guitar trumpet drum flute ball doll puppet kite sled sword spear shield cannon
bomb statue pyramid igloo skyscraper bakery greenhouse crown mouth nose ear neck chin heart lung stomach
skull bone finger thumb knee foot toe baby child mother father brother sister uncle aunt cousin teacher
student doctor nurse lawyer soldier sailor pilot farmer baker butcher waiter carpenter plumber engineer
scientist poet painter musician singer dancer actor king queen prince princess thief tailor astronaut
magician hero tourist mountain hill valley canyon cave volcano glacier iceberg river lake pond island
desert swamp waterfall planet moon star comet village city farm park rock sand mud gold silver iron
copper steel oxygen hydrogen helium coal rubber silk wool paper ink glue soap wood rain snow wind
lightning electricity gravity storm hurricane triangle hexagon hour day week month year decade century
morning summer winter Monday January December game battle baseball basketball tennis golf chess karate
ballet cooking mathematics geometry physics biology astronomy history love joy fear courage word
sentence vowel noun verb story poem song novel newspaper joke dozen million mile kilogram influenza
malaria army choir crowd swim run jump sing eat drink read whisper sad angry brave hungry thirsty empty
ancient invisible enormous tiny honest
"""
FIRST = frozenset(_FIRST.split())
"""Taught before the rest when only some words are."""
