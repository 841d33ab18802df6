"""Glosses of places, substances, nature, science, shapes, colors and times, one word a line."""

from __future__ import annotations

TEXT = """
mountain a very high piece of land
hill a raised piece of land lower than a mountain
valley a low area of land between hills
canyon a deep valley with steep sides
cave a large hollow in rock or under the ground
volcano a mountain from which hot lava and gases come out
glacier a slowly moving mass of ice
river a large natural stream of water
stream a small narrow river
lake a large area of water with land all around it
ocean a very large body of salt water
sea a large body of salt water
bay a part of the sea with land around three sides
beach a strip of sand beside the sea
island a piece of land with water all around it
peninsula a piece of land almost surrounded by water
continent one of the seven very large areas of land on earth
desert a dry area of land with few plants
plain a large flat area of land
swamp a soft wet area of land
geyser a natural fountain of hot water and steam
planet a large round body that moves around a star
moon the round body that moves around the earth
star a very large ball of hot gas in the sky
comet a body of ice with a bright tail that circles the sun
meteor a piece of rock from space that burns up in the air
galaxy a very large system of stars
constellation a group of stars that forms a picture
sun the star around which the earth moves
earth the planet on which we live
sky the space above the earth that we see
horizon the line where the earth and sky seem to meet
village a group of houses in the country
town a place where many people live, smaller than a city
city a very large town
capital the city where the government of a country sits
country an area of land with its own government
park a piece of land with grass and trees for people to enjoy
pasture a field where animals eat grass
meadow a field of grass and wild flowers
field an open piece of land where crops grow
orchard a piece of land where fruit trees grow
vineyard a piece of land where grapes are grown
rock a hard solid piece of the earth
stone a small piece of rock
boulder a very large rock
crystal a clear mineral with flat faces
oasis a place in a desert with water and plants
delta the flat land where a river splits before the sea
plateau a high flat area of land
crater a bowl-shaped hole in the ground or in a volcano
asteroid a small rocky body that moves around the sun
nest a place built by birds for their eggs
beehive a box or hollow in which honey is made by insects
world the earth and all its people
universe the whole of space and everything in it
equator the imaginary line around the middle of the earth
ground the solid surface of the earth
shore the land along the edge of water
creek a small stream
playground an outdoor area where children play
path a narrow way for walking
trail a rough way through a forest or over hills
border the line that separates two countries
state a part of a country with its own government
gold a soft yellow precious metal
silver a shiny white precious metal
iron a strong gray metal that magnets attract
copper a reddish-brown metal used for wires
tin a soft silvery metal used to coat cans
lead a heavy soft gray metal
zinc a bluish-white metal
aluminum a light silvery metal that does not rust
nickel a hard silvery metal used in coins
mercury a silvery metal that is liquid when cool
platinum a heavy silvery metal more precious than gold
uranium a heavy radioactive metal used in nuclear power
steel a hard strong metal made from iron and carbon
brass a yellow metal made from copper and zinc
bronze a brown metal made from copper and tin
oxygen the gas in the air that animals need to breathe
hydrogen the lightest gas, which burns to form water
nitrogen the gas that makes up most of the air
carbon the element found in coal, diamonds and all living things
helium a very light gas used to fill balloons
neon a colorless gas that glows in electric signs
sulfur a yellow element that burns with a bad smell
iodine a dark element used to clean wounds
sodium a soft silvery metal that is part of salt
calcium a white metal found in bones, teeth and milk
silicon an element used to make computer chips
air the mixture of gases that we breathe
steam the hot gas that boiling water becomes
clay a soft earth that becomes hard when it is baked
mud soft wet earth
soil the top layer of the earth in which plants grow
dust fine dry powder of earth or dirt
coal a black rock that is burned as fuel
petroleum a dark oil found under the ground
gasoline a liquid fuel for cars
plastic a light artificial material that can be shaped
rubber an elastic material made from the sap of trees
leather a material made from the skin of animals
silk a fine smooth cloth made from threads spun by worms
wool the soft thick hair of sheep
velvet a soft cloth with a thick smooth surface
paper thin sheets made from wood for writing and printing
cardboard stiff thick paper used for boxes
ink a colored liquid used for writing and printing
glue a sticky substance that joins things together
wax a soft substance that melts easily, used for candles
soap a substance used with water for washing
cement a gray powder that becomes hard like stone when wet
concrete a hard building material of cement, sand and stones
marble a hard smooth stone used for statues
granite a very hard gray or pink rock
chalk a soft white rock used for writing on boards
quartz a hard clear mineral
amber hard yellow-brown resin of ancient trees
ivory the hard white material of the tusks of elephants
wood the hard material that trees are made of
blood the red liquid that the heart pumps through the body
sweat salty liquid that comes out through the skin
saliva the watery liquid made in the mouth
aspirin a medicine that reduces pain and fever
insulin a substance that controls sugar in the blood
caffeine the substance in coffee and tea that keeps people awake
alcohol the liquid in beer and wine that makes people drunk
methane a colorless gas that burns and is used as fuel
ozone a form of oxygen that shields the earth from the sun
smoke a cloud of small particles from something burning
fog a thick cloud near the ground
mist a thin fog
dew small drops of water that form on cool grass
lava hot melted rock from a volcano
protein a substance in meat, eggs and beans that builds the body
charcoal a black material of burned wood used for grilling
venom the poison of a snake or a spider
metal a hard shiny material such as iron or gold
gas a substance like air that spreads to fill any space
acid a sour substance that can burn through metal
fuel a material burned to make heat or power
poison a substance that harms or kills living things
fabric material woven from threads
vaccine a substance that protects the body against a disease
diamond a very hard clear precious stone
ruby a deep red precious stone
emerald a bright green precious stone
sapphire a blue precious stone
pearl a smooth round jewel that forms inside an oyster
rain drops of water that fall from clouds
snow soft white flakes of ice that fall from clouds
hail small balls of ice that fall from clouds
frost thin white ice that forms on cold surfaces
lightning a flash of light in the sky during a storm
thunder the loud noise that follows lightning
wind moving air
electricity a form of energy that flows through wires
gravity the force that pulls things toward the earth
magnetism the force with which a magnet attracts iron
light the energy that lets us see
heat the energy that makes things warm
sound vibrations in the air that can be heard
radiation energy sent out as waves or tiny particles
weather the state of the air at a place and time
fire the heat, light and flames of something burning
rust a reddish-brown coating that forms on wet iron
erosion the wearing away of land by water or wind
evaporation the change of a liquid into a gas
photosynthesis the way plants make food from light
fermentation the process in which sugar turns into alcohol
digestion the process of breaking down food in the body
climate the usual weather of a place over many years
nature everything in the world not made by people
pollution harm to air, water or land from waste
darkness the lack of light
sunshine the light and warmth of the sun
evolution the slow change of living things over many generations
sunset the time when the sun goes down
sunrise the time when the sun comes up
coral a hard material made in the sea by tiny animals
plankton the tiny plants and animals that drift in the sea
storm a spell of very bad weather with strong wind and rain
hurricane a violent storm with very strong winds from the sea
tornado a violent storm with a turning funnel of wind
blizzard a heavy snowstorm with strong winds
avalanche a mass of snow that slides down a mountain
earthquake a violent shaking of the ground
flood a large amount of water covering dry land
drought a long time without rain
rainbow an arc of colors in the sky after rain
cloud a mass of tiny drops of water in the sky
eclipse the hiding of the sun or the moon by the other
tide the rise and fall of the sea twice a day
wave a moving ridge on the surface of the sea
shadow a dark area where light is blocked
echo a sound that comes back from a wall or a hill
breeze a light gentle wind
typhoon a violent storm of the western Pacific
tsunami a very large sea wave caused by an earthquake
explosion a sudden violent burst with a loud noise
whirlpool a current of water that turns quickly in a circle
thunderstorm a storm with lightning and heavy rain
snowflake a single small crystal of falling snow
flame the hot bright part of a fire
spark a tiny glowing bit of fire
puddle a small pool of rain on the ground
atom the smallest part of an element
molecule a group of atoms joined together
electron a tiny particle with a negative charge
proton a tiny particle with a positive charge
neutron a tiny particle without an electric charge
virus a tiny thing that causes disease in living cells
germ a tiny living thing that can cause disease
cell the smallest living part of a plant or animal
gene a part of a cell that passes features to children
vitamin a substance in food that the body needs for health
element a substance made of only one kind of atom
particle a very small piece of matter
mineral a solid natural substance found in rocks
fossil the remains of an ancient plant or animal in rock
orbit the path of one body around another in space
theory an idea that explains facts
hypothesis an idea that has still to be tested
species a kind of plant or animal
energy the power to do work or make things move
matter the stuff of which all things are made
temperature the measure of how hot or cold something is
speed how fast something moves
weight how heavy something is
friction the force that slows things that rub together
science the careful study of how the world works
technology the use of science to make useful things
information facts about something
data facts or numbers collected for study
space the vast emptiness beyond the sky
time what is measured in minutes, hours and years
bacteria tiny living things that can cause disease
circle a perfectly round flat shape
square a shape with four equal sides and four right angles
triangle a shape with three straight sides
rectangle a shape with four sides and four right angles
pentagon a shape with five straight sides
hexagon a shape with six straight sides
octagon a shape with eight straight sides
oval a shape like that of an egg
ellipse a closed curve like a flattened circle
sphere a round solid like a ball
cube a solid with six equal square faces
cylinder a solid shaped like a tube or a can
spiral a curve that winds around a center
polygon a flat shape with straight sides
diameter a straight line through the center of a circle
curve a line that bends smoothly
line a long thin mark
point a tiny exact spot
red the color of blood
blue the color of a clear sky
green the color of grass
yellow the color of a lemon
purple a color between red and blue
pink a pale red color
black the darkest color
white the color of snow
brown the color of chocolate
gray a color between black and white
second a sixtieth part of a minute
minute a period of sixty seconds
hour a period of sixty minutes
day a period of twenty-four hours
week a period of seven days
month one of the twelve parts of a year
year a period of twelve months
millennium a period of 1000 years
morning the part of the day before noon
evening the last part of the day before night
night the dark time between sunset and sunrise
weekend the days Saturday and Sunday
birthday the day of the year on which a person was born
holiday a day on which people do not work
anniversary the date on which an event happened in an earlier year
season one of the four parts of the year
moment a very short period
lifetime the time during which a person is alive
future the time that is still to come
past the time that has already gone by
Monday the first day of the working week
January the first month of the year
February the second month of the year
March the third month of the year
April the fourth month of the year
June the sixth month of the year
July the seventh month of the year
August the eighth month of the year
September the ninth month of the year
October the tenth month of the year
November the eleventh month of the year
December the last month of the year
Christmas the Christian holiday of the birth of Jesus on December 25
Easter the Christian holiday of the rising of Christ in spring
Halloween the evening of October 31, when children wear costumes
Tuesday the day after Monday
Wednesday the day after Tuesday
Thursday the day after Wednesday
Friday the last day of the working week
Saturday the first day of the weekend
Sunday the day after Saturday
childhood the time when a person is a child
noon twelve in the middle of the day
midnight twelve at night
dawn the time when the sun rises
dusk the time when the sun sets and it grows dark
spring the season between winter and summer
dozen a group of twelve
million the number one followed by six zeros
billion the number one followed by nine zeros
trillion the number one followed by twelve zeros
inch a unit of length equal to one twelfth of a foot
mile a unit of length equal to 5,280 feet
meter a unit of length equal to one hundred centimeters
kilometer a unit of length equal to 1000 meters
gram a unit of weight equal to one thousandth of a kilogram
kilogram a unit of weight equal to 1000 grams
ounce a unit of weight equal to one sixteenth of a pound
ton a unit of weight equal to 2000 pounds
liter a unit of volume used for liquids
gallon a unit of volume equal to four quarts
pint a unit of capacity equal to half a quart
volt the unit of electric force
megabyte a unit of information equal to one million bytes
gigabyte a unit of information equal to one billion bytes
pair two things of the same kind
percent one part in every hundred
zero the number that means none
half one of two equal parts
pound a unit of weight equal to 16 ounces
centimeter a unit of length equal to one hundredth of a meter
thousand the number equal to ten times one hundred
hundred the number equal to ten times ten
"""
