"""Glosses of things people make, one word a line."""

from __future__ import annotations

TEXT = """
house a building in which people live
castle a large old building with thick walls and towers
palace a large grand house of a king or queen
church a building where Christians worship
temple a building where people worship
mosque a building where Muslims worship
school a place where children are taught
hospital a building where sick people are treated
hotel a building where travelers pay to stay
factory a building where goods are made with machines
barn a farm building for animals and hay
tent a shelter of cloth that can be carried
tower a tall narrow building
bridge a structure that carries a road over a river or a valley
tunnel a long passage under the ground
street a public road with buildings along it
railway a line of tracks on which trains run
harbor a place where ships are safe from the open sea
dock a place where a ship is loaded or repaired
pier a platform built out into the water
canal a waterway dug by people for boats
dam a wall that holds back the water of a river
lighthouse a tower with a strong light that guides ships
windmill a building whose sails are turned by the wind
fence a barrier of wood or wire around a piece of land
wall an upright structure that closes or divides a space
door a flat panel that opens and closes an entrance
window an opening in a wall with glass to let in light
roof the covering on top of a building
floor the flat surface of a room on which people walk
ceiling the upper surface of a room
chimney a pipe through which smoke leaves a building
ladder a frame with rungs for climbing up and down
elevator a moving cabin that carries people between floors
bathroom a room for washing with a bathtub or shower
attic a room just under the roof of a house
cellar a room under a house
garage a building where cars are kept
balcony a platform on the outside of a building
library a place where books are kept and lent
museum a building where interesting old things are shown
theater a building where plays are performed
stadium a large place for watching sports
prison a building where criminals are locked up
dungeon a dark underground prison cell
fountain a structure from which water springs into the air
table a piece of furniture with a flat top and legs
cupboard a piece of furniture with doors and shelves for storage
shelf a flat board fixed to a wall to hold things
wardrobe a tall cupboard for clothes
mirror a glass surface that shows a reflection
lamp a device that gives light
watch a small clock worn on the wrist
carpet a thick woven covering for a floor
rug a small carpet
blanket a thick cloth that keeps a person warm in bed
mattress a large soft pad to sleep on
bucket an open container with a handle for carrying water
bottle a glass or plastic container with a narrow neck for liquids
cup a small open container with a handle for drinking
mug a cup with a handle
bowl a round deep dish
plate a flat dish from which food is eaten
spoon a tool with a small bowl for eating soup
fork a tool with points for lifting food
knife a tool with a blade for cutting
pan a wide metal container for cooking
pot a deep round container for cooking
kettle a container with a spout for boiling water
refrigerator a kitchen appliance that keeps food cold
blender a kitchen machine that mixes food with whirling blades
mop a tool with a long handle for washing floors
brush a tool with many stiff hairs and a handle
hammer a hand tool with a heavy head used to drive nails
saw a hand tool with a toothed blade for cutting wood
drill a tool for making holes
wrench a tool for turning nuts and bolts
chisel a tool with a sharp flat end for shaping wood or stone
axe a tool with a heavy blade for chopping wood
spade a hand tool with a flat blade for digging
rake a long-handled tool with teeth for gathering leaves
hoe a long-handled tool for breaking up soil
nail a thin pointed piece of metal hammered into wood
screw a metal pin with a spiral groove
bolt a metal pin that is screwed into a nut
hinge a joint on which a door turns
lock a fastener that is opened with a key
key a shaped piece of metal that opens a lock
chain a row of metal rings joined together
rope a thick strong cord
string a thin cord for tying things
thread a very thin string used for sewing
needle a thin pointed piece of steel used in sewing
pin a short thin pointed piece of metal used as a fastener
button a small disk sewn on clothes as a fastener
zipper a fastener with two rows of teeth
razor a tool with a sharp blade for shaving
umbrella a folding cloth cover that keeps off the rain
bag a soft container that is open at the top
box a container with flat sides and a lid
crate a large wooden box
barrel a large round wooden container with flat ends
sack a large bag of strong cloth or paper
envelope a paper cover for a letter
pencil a thin wooden stick for writing or drawing
pen a tool for writing with ink
crayon a stick of colored wax for drawing
eraser a piece of rubber that removes pencil marks
ruler a straight strip marked for measuring length
compass an instrument whose needle points north
book a set of printed pages bound together
notebook a book with blank pages to write in
dictionary a book that explains the meanings of words
encyclopedia a work with articles on every subject
calendar a table of the days and months of a year
camera a device for taking photographs
telescope an instrument that makes distant objects look nearer
microscope an instrument that makes very small objects look larger
thermometer an instrument that measures temperature
computer a machine that stores and works with information
keyboard a device with rows of keys for typing
printer a machine that puts text and pictures on paper
monitor a screen that shows the output of a computer
telephone a device for speaking with people far away
television a device that shows moving pictures sent from far away
radio a device that receives sound sent through the air
microphone a device that turns sound into an electrical signal
loudspeaker a device that turns electrical signals into sound
robot a machine that can do work by itself
calculator a small machine that works with numbers
typewriter a machine with keys for printing letters on paper
flashlight a small electric lamp carried in the hand
truck a large motor vehicle for carrying heavy goods
bus a long motor vehicle that carries many passengers
bicycle a vehicle with two wheels moved by pedals
tricycle a vehicle with three wheels moved by pedals
scooter a small vehicle with two wheels and a board to stand on
van a covered vehicle for carrying goods
tractor a farm vehicle with large wheels for pulling machines
train a line of railway cars pulled by an engine
locomotive an engine that pulls a train
tram a passenger vehicle that runs on rails in a street
airplane a flying vehicle with fixed wings and engines
helicopter an aircraft with turning blades on top
glider an aircraft that flies without an engine
balloon a bag filled with gas or hot air that can rise
rocket a vehicle pushed into space by burning fuel
parachute a cloth canopy that slows a fall through the air
canoe a small light boat moved with paddles
kayak a narrow covered canoe for one person
raft a flat floating platform of logs
yacht a sailing boat used for cruising or racing
ferry a boat that carries people or vehicles across water
submarine a ship that can travel under water
anchor a heavy metal hook that keeps a ship in place
oar a pole with a flat blade for rowing a boat
sail a large piece of cloth that catches the wind to move a boat
wheel a round object that turns and lets a vehicle roll
tire a rubber ring around a wheel
engine a machine that turns fuel into motion
motor a machine that makes something move
brake a device that slows or stops a vehicle
gear a wheel with teeth that turns another wheel
shirt a garment with sleeves for the upper body
blouse a loose shirt worn by women
sweater a warm knitted garment for the upper body
coat a warm garment worn over other clothes
vest a sleeveless garment worn over a shirt
skirt a garment that hangs from the waist
sock a soft knitted covering for the foot
shoe an outer covering for the foot
boot a shoe that also covers the lower leg
sandal an open shoe fastened with straps
slipper a soft shoe worn in the house
glove a covering for the hand with a part for each finger
mitten a glove with one part for the four fingers
hat a covering for the head
cap a soft flat hat with a peak
helmet a hard hat that protects the head
scarf a cloth worn around the neck
tie a strip of cloth worn around the collar of a shirt
belt a band of leather worn around the waist
apron a garment worn in front to keep clothes clean
uniform a set of special clothes worn by members of a group
crown a gold ring worn on the head by a king or queen
necklace a chain or string of beads worn around the neck
bracelet a band or chain worn around the wrist
ring a circular band worn on a finger
earring a piece of jewelry worn on the ear
piano a large musical instrument played by pressing keys
violin a musical instrument with four strings played with a bow
guitar a musical instrument with six strings
cello a large string instrument held between the knees
harp a musical instrument with strings stretched in a large frame
clarinet a black woodwind instrument shaped like a straight tube
trombone a brass instrument with a sliding tube
saxophone a curved brass instrument with a reed
drum a round musical instrument that is hit with sticks
xylophone an instrument with wooden bars struck with small hammers
accordion an instrument with bellows and keys that is squeezed
banjo an instrument like a guitar with a round body
harmonica a small instrument played by blowing through holes
organ a musical instrument with pipes and a keyboard
whistle a small device that makes a high sound when blown into
doll a toy that looks like a small person
toy an object for children to play with
swing a hanging seat that moves back and forth
slide a smooth sloping surface that children go down
sled a vehicle that slides over snow
skate a shoe with a blade or wheels for gliding
ski one of two long boards for gliding over snow
racket a bat with strings used to hit a ball in games
net an open fabric of crossing cords used to catch fish
sword a weapon with a long metal blade
bow a bent piece of wood with a string for shooting arrows
arrow a thin pointed stick that is shot from a bow
shield a flat piece of metal carried to protect the body
cannon a large heavy gun on wheels
pistol a small gun held in one hand
rifle a gun with a long barrel
bomb a weapon that explodes
tank a heavy armored vehicle with a large gun
missile a weapon that flies to its target and explodes
lever a bar that turns on a point to lift things
pulley a wheel with a groove for a rope used to lift things
statue a stone or metal figure of a person or animal
painting a picture made with paints
portrait a picture of a person
photograph a picture made with a camera
vase a jar for flowers
pyramid a huge stone building with four sloping triangular sides
igloo a round house built of blocks of snow
hut a small simple house
cabin a small wooden house
apartment a set of rooms to live in within a larger building
bakery a shop where bread and cakes are made
pharmacy a shop that sells medicines
restaurant a place where people pay to eat meals
supermarket a large shop that sells food
cage an enclosure made of bars for animals
aquarium a glass tank in which fish are kept
zoo a place where wild animals are kept for people to see
trap a device for catching animals
cradle a small bed for a baby that can be rocked
stroller a small carriage in which a young child is pushed
crutch a stick that helps a person with a hurt leg walk
bandage a strip of cloth that covers a wound
syringe a tube with a needle for giving medicine
stethoscope an instrument for listening to the heart and lungs
anvil a heavy iron block on which metal is hammered
furnace a closed container in which a very hot fire burns
fireplace the place in a room where a fire burns
bagpipe a Scottish instrument with a bag and several pipes
tambourine a small drum with metal disks around its edge
abacus a frame with sliding beads used for counting
sundial a device that shows the time by a shadow
hourglass a device that measures time with falling sand
stopwatch a watch that can be started and stopped for exact timing
pendulum a hanging weight that swings back and forth
magnet a piece of iron that attracts other iron
lens a curved piece of glass that bends light
prism a clear block of glass that splits light into colors
laser a device that makes a narrow beam of strong light
satellite an object that orbits the earth
antenna a metal rod that sends or receives radio signals
transistor a tiny electronic part that switches or strengthens a current
thermostat a device that keeps a temperature steady
escalator a moving staircase
bulldozer a powerful tractor that pushes earth
plow a farm tool that turns over the soil
hose a flexible pipe that carries water
faucet a device that lets water flow from a pipe
sink a basin with a tap for washing
bathtub a large open container in which a person bathes
toilet a bathroom seat that is flushed with water
shower a device that sprays water over a person who washes
drain a pipe that carries water away
pipe a long tube through which water or gas flows
valve a device that opens or closes the flow in a pipe
pump a machine that moves water or air
funnel a cone with a tube for pouring liquids into bottles
ladle a deep spoon with a long handle for serving soup
spatula a kitchen tool with a wide flat blade
corkscrew a tool for pulling corks out of bottles
tray a flat board for carrying food and drinks
quilt a thick bed cover of two layers stitched together
napkin a piece of cloth or paper for wiping the mouth
tapestry a heavy cloth with a woven picture
flag a piece of cloth with the design of a country
poster a large printed picture put up on a wall
stamp a small piece of paper that shows postage is paid
coin a flat round piece of metal used as money
medal a metal disk given as an award
trophy a prize given to a winner
trampoline a sheet held by springs on which people jump
seesaw a board on which two children go up and down
carousel a turning platform with seats shaped like animals
treadmill an exercise machine with a moving belt to walk on
dumbbell a short bar with weights used for exercise
snorkel a tube for breathing under water
surfboard a long board for riding on waves
skateboard a short board on wheels that a person stands on
snowshoe a wide frame worn on the foot for walking on snow
snowmobile a vehicle with skis for traveling on snow
gondola a long narrow boat used on the canals of Venice
hovercraft a vehicle that travels on a cushion of air
jeep a strong car for driving over rough ground
convertible a car with a roof that can be folded down
wagon a strong four-wheeled cart pulled by animals
carriage a four-wheeled vehicle pulled by horses
chariot an ancient two-wheeled cart pulled by horses
jigsaw a puzzle of many pieces that fit together to make a picture
mousetrap a device for catching small rodents
scarecrow a figure in a field that frightens birds
padlock a removable lock that hangs from a loop
doorbell a button by the entrance that makes a ringing sound
doorknob a round handle that is turned to enter a room
loom a machine for weaving cloth
paintbrush a tool with hairs for putting on paint
kimono a loose Japanese robe with wide sleeves
turban a long cloth wound around the head
cardigan a knitted jacket that buttons up the front
kilt a knee-length pleated skirt worn by Scottish men
laptop a small computer that can be carried
tablet a flat computer with a touch screen
smartphone a pocket telephone that is also a small computer
phone a device for speaking with people far away
website a set of pages on the internet
program a list of instructions that a computer carries out
app a small program for a phone or a computer
file a set of data stored under one name
folder a place where files are kept together
password a secret word that lets a person in
browser a program for looking at websites
server a computer that gives data to other computers
network a group of computers that are joined together
internet the network that joins computers around the world
screen the flat part of a device that shows pictures
chip a tiny piece of silicon with electronic circuits
processor the part of a computer that carries out instructions
circuit a closed path through which electricity flows
cable a thick wire that carries electricity or signals
wire a long thin thread of metal
plug a part that connects a device to electricity
switch a device that turns something on or off
charger a device that fills a battery with electricity
drone an aircraft without a pilot
sensor a device that notices light, heat or motion
scanner a device that turns a page into a computer picture
projector a machine that throws pictures on a wall
speaker a device that turns electrical signals into sound
algorithm a set of steps for solving a problem
database a large organized store of information
machine a device with moving parts that does work
tool an object held in the hand to do work
weapon an object used to hurt or kill
gun a weapon that shoots bullets
bullet a small piece of metal shot from a gun
vehicle a machine that carries people or goods
aircraft a machine that can fly
plane a flying vehicle with fixed wings and engines
jet a fast airplane without propellers
spaceship a vehicle that travels in space
bike a vehicle with two wheels moved by pedals
subway a railway under the ground in a city
airport a place where airplanes take off and land
station a place where trains or buses stop
university a school of the highest level
college a school that students attend after high school
classroom a room where lessons are given
office a room where people work at desks
shop a place where things are sold
store a place where things are sold
market a place where people meet to buy and sell
bank a business that keeps and lends money
cinema a building where films are shown
gym a room with equipment for exercise
laboratory a room where scientists do experiments
farm an area of land for growing crops and keeping animals
home the place where a person lives
room a part of a building with its own walls
building a structure with walls and a roof
cafe a small restaurant that serves coffee and snacks
hall a large room or a passage in a building
well a deep hole from which water is drawn
monument a structure built to remember a person or an event
sculpture a work of art carved or shaped by hand
drawing a picture made with a pencil or pen
film a story told in pictures on a screen
movie a story told in pictures on a screen
cartoon a film made of drawings
picture a drawing, painting or photograph
gift a thing given to someone without payment
present a thing given to someone without payment
jewel a precious stone
sheet a large piece of cloth spread on a bed
cushion a soft pad to sit or lean on
vacuum a space with nothing in it
fan a device with turning blades that moves air
heater a device that makes a room warm
freezer a cold box that keeps food frozen
microwave an oven that heats food quickly with invisible waves
puzzle a game or problem that is hard to solve
instrument a tool for careful work or for making music
pocket a small bag sewn into a garment
sleeve the part of a garment that covers the arm
collar the part of a shirt around the neck
hood a covering for the head fixed to a coat
robe a long loose garment
cloak a loose coat without sleeves
costume a set of clothes worn to look like someone else
mask a covering that hides the face
toothbrush a small brush for cleaning the teeth
wig a head covering of false hair
straw a thin tube for drinking
lid a cover that closes a container
hook a curved piece of metal for hanging or catching things
pill a small round piece of medicine
scale an instrument for weighing
sponge a soft thing full of holes used for washing
bulb a glass object that gives light when electricity flows through it
kite a toy that flies in the wind on a long string
furniture the movable objects in a room, such as tables and beds
software the programs that run on a computer
hardware the machines and parts of which a computer is made
clothing things worn to cover the body
jewelry rings, necklaces and other ornaments
luggage the bags that a traveler takes along
cloth material woven from threads
makeup colored powders and creams put on the face
shampoo a liquid soap for washing the hair
toothpaste a paste for cleaning the teeth
perfume a liquid with a pleasant smell
paint a colored liquid spread on a surface
armor a metal suit that protects a soldier
equipment the things needed for a task
traffic the vehicles moving along a road
garbage things that are thrown away
medicine a substance that treats illness
radar a device that finds objects by reflected radio waves
glasses two lenses in a frame worn to see better
sunglasses dark lenses that protect the eyes from the sun
headphones two small speakers worn over the ears
clothes things worn to cover the body
binoculars an optical instrument with a lens for each eye
shorts trousers that end at or above the knee
pliers a tool with two handles for gripping things
stairs a set of steps from one floor to another
trousers a garment that covers each leg separately
jeans trousers made of strong blue cotton
pajamas loose clothes worn for sleeping
scissors a tool with two crossing blades for cutting
dice small cubes with dots thrown in games
"""
