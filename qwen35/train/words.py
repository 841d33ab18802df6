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
rhinoceros hippopotamus giraffe zebra camel llama deer moose reindeer antelope gazelle bison buffalo yak
donkey mule pony monkey gorilla chimpanzee orangutan baboon lemur kangaroo koala wombat platypus opossum
armadillo anteater sloth panda raccoon skunk badger otter weasel ferret seal walrus dolphin shark ray
eel salmon trout tuna cod herring sardine carp goldfish catfish swordfish seahorse octopus squid
jellyfish starfish lobster crab shrimp oyster clam snail slug worm leech spider scorpion ant bee wasp
hornet fly mosquito butterfly moth beetle ladybug grasshopper cricket locust cockroach termite dragonfly
flea louse caterpillar centipede millipede frog toad newt salamander tadpole lizard gecko iguana
chameleon snake python cobra viper rattlesnake turtle tortoise crocodile alligator dinosaur eagle hawk
falcon vulture owl crow raven magpie jay robin sparrow canary swallow woodpecker kingfisher cuckoo
pigeon dove parrot peacock pheasant ostrich emu flamingo stork heron crane swan pelican albatross
hummingbird bird fish insect reptile mammal amphibian puppy kitten calf lamb foal piglet chick poodle
terrier greyhound bulldog stallion mare bull ox ram rooster hen cub coyote jackal hyena mongoose meerkat
porcupine chipmunk alpaca mammoth pterodactyl barnacle mussel scallop halibut piranha stingray orca
beagle husky tarantula firefly cicada mantis condor toucan macaw starling blackbird cardinal puffin kiwi
unicorn dragon animal pet
""",
    ),
    _kind(
        "a plant",
        "noun.plant",
        True,
        """
tree oak pine maple birch willow ash cedar fir spruce poplar palm cactus fern bush shrub vine flower
rose tulip daisy lily orchid sunflower daffodil violet iris poppy carnation dandelion marigold lotus
thistle nettle mushroom fungus leaf petal root stem seed bud acorn branch twig trunk thorn weed herb
redwood magnolia blossom cone log plant crop
""",
    ),
    _kind(
        "a plant",
        "noun.plant",
        False,
        """
moss grass lavender jasmine clover ivy bamboo seaweed wheat barley rye corn cotton tobacco eucalyptus
mistletoe holly bark
""",
    ),
    _kind(
        "a food",
        "noun.food noun.plant",
        True,
        """
apple banana orange lemon lime pear peach plum cherry grape strawberry raspberry blueberry blackberry
cranberry pineapple mango melon watermelon coconut fig date apricot nectarine grapefruit tangerine
pomegranate avocado olive tomato potato carrot onion turnip radish beet cabbage cauliflower cucumber
pumpkin pepper eggplant pea bean lentil peanut almond walnut chestnut cashew sandwich hamburger pizza
pie cake cookie biscuit pancake waffle doughnut muffin pretzel sausage omelet salad stew taco burrito
dumpling noodle pudding custard lollipop bagel croissant meatball kebab cupcake tart cracker steak egg
dessert meal snack cocktail milkshake fruit vegetable berry spice sauce loaf nut
""",
    ),
    _kind(
        "a food",
        "noun.food noun.substance",
        False,
        """
bread butter cheese milk cream yogurt honey sugar salt flour rice pasta spaghetti soup jam syrup vinegar
mustard ketchup mayonnaise chocolate ham bacon beef pork coffee tea beer wine whiskey vodka rum gin
brandy champagne cider lemonade juice broccoli spinach celery asparagus garlic parsley basil mint thyme
ginger cinnamon vanilla oatmeal porridge popcorn dough sushi meat food water ice caviar tofu curry gravy
lasagna toast cereal caramel cocoa espresso oil lettuce candy squash jelly breakfast lunch dinner
""",
    ),
    _kind(
        "a thing people make",
        "noun.artifact",
        True,
        """
house cottage castle palace church cathedral temple mosque school hospital hotel factory barn tent tower
bridge tunnel road street highway railway harbor dock pier canal dam lighthouse windmill fence wall gate
door window roof floor ceiling chimney ladder elevator kitchen bedroom bathroom attic cellar garage
garden balcony library museum theater stadium prison dungeon fountain chair table desk bed sofa bench
stool cupboard drawer shelf bookcase wardrobe mirror lamp candle lantern clock watch carpet rug curtain
blanket pillow mattress towel basket bucket bottle jar cup mug glass bowl plate spoon fork knife pan pot
kettle oven stove refrigerator toaster blender dishwasher broom mop brush hammer saw drill wrench
screwdriver chisel axe shovel spade rake hoe wheelbarrow nail screw bolt hinge lock key chain rope
string thread needle pin button zipper razor comb umbrella bag purse wallet suitcase backpack box crate
barrel sack envelope pencil pen crayon eraser ruler compass book notebook dictionary encyclopedia
calendar camera telescope microscope thermometer barometer computer keyboard printer monitor telephone
television radio microphone loudspeaker robot calculator typewriter battery flashlight car truck bus
taxi motorcycle bicycle tricycle scooter van tractor ambulance train locomotive tram airplane helicopter
glider balloon rocket parachute ship boat canoe kayak raft yacht ferry submarine sailboat anchor oar
sail wheel tire engine motor brake pedal gear shirt blouse sweater jacket coat vest skirt dress sock
shoe boot sandal slipper glove mitten hat cap helmet scarf tie belt apron uniform crown necklace
bracelet ring earring piano violin guitar cello harp flute clarinet trumpet trombone tuba saxophone drum
xylophone accordion banjo harmonica organ bell whistle ball doll puppet toy swing slide sled skate ski
racket net sword dagger spear bow arrow shield cannon pistol rifle bomb tank missile lever pulley statue
painting portrait photograph vase pyramid igloo hut cabin skyscraper apartment bakery pharmacy
restaurant supermarket greenhouse stable cage aquarium zoo trap cradle stroller wheelchair crutch
bandage syringe stethoscope anvil furnace fireplace bagpipe tambourine abacus sundial hourglass
stopwatch pendulum magnet lens prism laser satellite antenna transistor thermostat escalator bulldozer
plow hose faucet sink bathtub toilet shower drain pipe valve pump funnel ladle spatula corkscrew teapot
tray quilt hammock tablecloth napkin tapestry flag banner poster stamp coin medal trophy trampoline
seesaw carousel treadmill dumbbell snorkel surfboard skateboard snowshoe snowmobile gondola hovercraft
limousine jeep convertible wagon carriage chariot jigsaw mousetrap scarecrow padlock doorbell doorknob
loom paintbrush kimono turban cardigan kilt laptop tablet smartphone phone website program app file
folder password browser server network internet screen chip processor circuit cable wire plug switch
charger drone sensor scanner projector speaker algorithm database machine tool weapon gun bullet vehicle
aircraft plane jet spaceship bike subway airport station university college classroom office shop store
market bank cinema gym laboratory farm home room building cafe hall well monument sculpture drawing film
movie cartoon picture gift present jewel sheet cushion vacuum fan heater freezer microwave puzzle
instrument pocket sleeve collar hood robe cloak costume mask toothbrush wig straw lid hook pill scale
sponge bulb kite
""",
    ),
    _kind(
        "a thing people make",
        "noun.artifact",
        False,
        """
furniture software hardware clothing jewelry luggage cloth makeup shampoo toothpaste perfume paint armor
equipment traffic garbage medicine radar
""",
    ),
    _kind(
        "a thing people make",
        "noun.artifact",
        False,
        """
glasses sunglasses headphones clothes binoculars shorts pliers stairs trousers jeans pajamas scissors
dice
""",
    ),
    _kind(
        "a part of the body",
        "noun.body",
        True,
        """
head face eye ear nose mouth lip tooth tongue chin cheek forehead neck throat shoulder arm elbow wrist
hand finger thumb chest rib waist hip leg knee ankle foot toe heel heart lung stomach liver kidney brain
skull bone muscle nerve vein artery beard mustache eyebrow eyelash eyelid spine skeleton tail paw hoof
claw wing feather beak horn antler fin gill shell mane jaw retina pupil bladder intestine body belly
fist thigh shin wound scar fang tusk snout whisker voice
""",
    ),
    _kind(
        "a part of the body",
        "noun.body",
        False,
        """
hair skin fur
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
painter musician singer dancer actor actress king queen prince princess emperor knight priest monk nun
pope bishop thief pirate spy hunter shepherd cowboy blacksmith tailor barber librarian journalist
photographer astronaut athlete clown magician wizard giant dwarf hero villain tourist passenger customer
merchant banker miner beggar hermit nomad refugee mayor ambassador referee goalkeeper jockey acrobat
vegetarian genius optimist pessimist coward tyrant rebel guest host landlord person human parent
grandparent grandson teenager adult toddler stranger boss worker manager secretary programmer artist
designer detective policewoman criminal prisoner driver cashier coach player champion winner leader
politician minister citizen voter professor patient veterinarian pharmacist psychologist inventor
explorer fisherman viking ninja samurai warrior cyclist ghost witch vampire mermaid angel god fairy
monster zombie alien groom boyfriend girlfriend partner president
""",
    ),
    _kind(
        "a place or natural thing",
        "noun.object noun.location noun.artifact",
        True,
        """
mountain hill valley canyon cliff cave volcano glacier iceberg river stream lake pond ocean sea bay
beach coast island peninsula continent desert plain swamp waterfall geyser reef planet moon star comet
meteor galaxy constellation sun earth sky horizon village town city capital country park pasture meadow
field orchard vineyard rock stone pebble boulder crystal oasis delta dune plateau crater asteroid nest
beehive world universe equator ground shore creek playground path trail border state
""",
    ),
    _kind(
        "a substance",
        "noun.substance noun.object noun.artifact noun.phenomenon noun.plant",
        False,
        """
gold silver iron copper tin lead zinc aluminum nickel mercury platinum uranium steel brass bronze oxygen
hydrogen nitrogen carbon helium neon sulfur iodine sodium calcium silicon air steam sand clay mud soil
dust coal petroleum gasoline plastic rubber leather silk wool velvet paper cardboard ink glue wax soap
cement concrete marble granite chalk quartz amber ivory wood blood sweat saliva aspirin insulin caffeine
alcohol methane ozone smoke fog mist dew lava protein charcoal venom
""",
    ),
    _kind(
        "a substance",
        "noun.substance",
        True,
        """
metal gas acid fuel poison fabric vaccine diamond ruby emerald sapphire pearl
""",
    ),
    _kind(
        "something in nature",
        "noun.phenomenon noun.event noun.process noun.object noun.state",
        False,
        """
rain snow hail frost lightning thunder wind electricity gravity magnetism light heat sound radiation
weather fire rust erosion evaporation photosynthesis fermentation digestion climate nature pollution
darkness sunshine evolution sunset sunrise coral plankton
""",
    ),
    _kind(
        "something in nature",
        "noun.phenomenon noun.event noun.object noun.state",
        True,
        """
storm hurricane tornado blizzard avalanche earthquake flood drought rainbow cloud eclipse tide wave
shadow echo breeze typhoon tsunami explosion whirlpool thunderstorm snowflake flame spark puddle
""",
    ),
    _kind(
        "something in science",
        "noun.object",
        True,
        """
atom molecule electron proton neutron virus germ cell gene vitamin element particle mineral fossil orbit
theory hypothesis species
""",
    ),
    _kind(
        "something in science",
        "noun.phenomenon",
        False,
        """
energy matter temperature speed weight friction science technology information data space time bacteria
""",
    ),
    _kind(
        "a shape",
        "noun.shape noun.location noun.attribute",
        True,
        """
circle square triangle rectangle pentagon hexagon octagon oval ellipse sphere cube cylinder spiral
polygon diameter radius angle curve line point
""",
    ),
    _kind(
        "a color",
        "noun.attribute",
        False,
        """
red blue green yellow purple pink black white brown gray
""",
    ),
    _kind(
        "a time",
        "noun.time noun.event",
        True,
        """
second minute hour day week month year decade century millennium morning afternoon evening night weekend
birthday holiday anniversary season moment lifetime future past
""",
    ),
    _kind(
        "a time",
        "noun.time",
        False,
        """
summer winter autumn Monday January February March April June July August September October November
December Christmas Easter Halloween tomorrow yesterday Tuesday Wednesday Thursday Friday Saturday Sunday
childhood noon midnight dawn dusk spring
""",
    ),
    _kind(
        "an activity",
        "noun.act noun.event",
        True,
        """
game race wedding funeral concert parade picnic war battle journey voyage expedition festival marathon
tournament murder robbery burglary crime experiment massage haircut somersault kiss hug handshake party
dance trip meeting lesson exam job hobby vacation contest revolution adventure
""",
    ),
    _kind(
        "an activity",
        "noun.act noun.cognition",
        False,
        """
football baseball basketball tennis golf hockey soccer chess poker boxing wrestling fencing archery
swimming skiing surfing gymnastics yoga karate judo dancing ballet cooking fishing hunting farming
agriculture gardening carpentry piracy rugby badminton volleyball work sport exercise music art
photography sailing cycling skating rowing running jogging checkers jazz theft surgery bowling
""",
    ),
    _kind(
        "a field of study",
        "noun.cognition noun.act noun.communication",
        False,
        """
mathematics arithmetic algebra geometry calculus statistics physics chemistry biology astronomy geology
botany zoology psychology philosophy history geography economics linguistics logic astrology ecology
""",
    ),
    _kind(
        "something in society",
        "noun.communication noun.possession",
        True,
        """
law rule tax election vote court bill price debt loan salary budget business religion language culture
tradition right republic kingdom
""",
    ),
    _kind(
        "something in society",
        "noun.possession",
        False,
        """
money cash democracy peace education insurance marriage slavery society poverty wealth trade police
""",
    ),
    _kind(
        "a feeling",
        "noun.feeling noun.state noun.attribute",
        False,
        """
love joy anger fear hate jealousy envy pride shame guilt sadness happiness hope surprise disgust boredom
loneliness hunger thirst pain excitement stress grief gratitude empathy anxiety
""",
    ),
    _kind(
        "a state or quality",
        "noun.attribute noun.state noun.cognition",
        False,
        """
freedom justice truth trust loyalty luck intelligence imagination memory knowledge strength health life
death friendship success failure curiosity creativity respect greed courage honesty patience kindness
beauty wisdom
""",
    ),
    _kind(
        "something written or said",
        "noun.communication",
        True,
        """
word sentence letter alphabet vowel consonant noun verb adjective adverb pronoun question answer joke
riddle story novel poem song lullaby symphony opera diary newspaper magazine map recipe menu ticket
passport email proverb fable myth legend biography autobiography comma synonym antonym palindrome
anagram metaphor name number fraction text page chapter rhyme secret promise lie fairytale melody
""",
    ),
    _kind(
        "an amount",
        "noun.quantity",
        True,
        """
dozen million billion trillion inch mile meter kilometer gram kilogram ounce ton liter gallon pint volt
megabyte gigabyte pair percent zero half pound centimeter thousand hundred
""",
    ),
    _kind(
        "an illness",
        "noun.state",
        False,
        """
influenza pneumonia malaria measles mumps cancer diabetes asthma anemia insomnia amnesia rabies
arthritis tuberculosis smallpox
""",
    ),
    _kind(
        "an illness",
        "noun.state",
        True,
        """
fever headache cold allergy disease
""",
    ),
    _kind(
        "a group",
        "noun.group",
        True,
        """
family army navy orchestra choir jury parliament company committee crowd herd flock swarm pack forest
jungle fleet team government class club band audience nation tribe
""",
    ),
    _kind(
        "a verb",
        "verb",
        False,
        """
swim run jump sing sleep eat drink write read laugh cry sneeze cough yawn whisper shout climb crawl bake
fry sew knit borrow lend steal forget remember forgive apologize walk teach learn think speak listen
smile buy sell give build throw catch push pull dig cut open break repair travel win lose hide help
dream breathe chew boil celebrate invent explain share
""",
    ),
    _kind(
        "an adjective",
        "adj",
        False,
        """
happy sad angry brave lazy hungry thirsty empty ancient modern dangerous invisible transparent enormous
tiny honest polite rude fragile nocturnal edible deaf bald tall huge old young fast slow strong weak
rich poor hot heavy beautiful ugly clever funny tired wet quiet loud expensive cheap famous lonely
jealous curious shy generous selfish blind
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
