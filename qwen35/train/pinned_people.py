"""Glosses of people, the body, groups and illnesses, one word a line."""

from __future__ import annotations

TEXT = """
head the part of the body that holds the face and the brain
face the front of the head
eye the organ of sight
ear the organ of hearing
nose the organ of smell
mouth the opening in the face for eating and speaking
lip one of the two soft edges of the mouth
tooth a hard white structure in the jaw used for biting
tongue the movable organ of taste in the mouth
chin the part of the face below the mouth
neck the part of the body between the head and the shoulders
throat the passage from the mouth to the stomach and lungs
arm the part of the body from the shoulder to the hand
elbow the joint in the middle of the arm
wrist the joint between the hand and the arm
hand the part of the arm beyond the wrist
finger one of the five long parts of the hand
thumb the short thick first finger of the hand
chest the front of the body between the neck and the belly
rib one of the curved bones around the chest
waist the narrow part of the body above the hips
hip the side of the body between the waist and the leg
leg the part of the body on which a person stands
knee the joint in the middle of the leg
ankle the joint between the foot and the leg
foot the part of the leg on which a person stands
toe one of the five end parts of the foot
heart the organ that pumps blood through the body
lung one of the two organs used for breathing
stomach the organ in which food is digested
liver a large organ that makes bile
kidney one of two organs that clean the blood
brain the organ in the head that thinks and feels
skull the bony frame of the head
bone one of the hard parts inside the body
muscle a part of the body that pulls to make it move
nerve a bundle of fibers that carries signals to the brain
vein a tube that carries blood back to the heart
artery a tube that carries blood away from the heart
mustache the hair that grows on the upper lip
eyelash one of the short hairs around the eye
eyelid the fold of skin that closes over the eye
spine the row of bones down the back
skeleton the frame of bones inside a body
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
mane the long hair on the neck of a horse or a lion
jaw the bone that holds the teeth
retina the layer at the back of the eye that senses light
pupil the dark opening in the middle of the eye
bladder the organ that holds urine
intestine the long tube that carries food from the stomach
body the whole physical form of a person or animal
belly the front of the body below the chest
fist a hand with the fingers closed tightly
thigh the part of the leg above the knee
shin the front of the leg below the knee
wound a place where the body is hurt
scar a mark left by a healed wound
fang a long sharp tooth
tusk a long pointed tooth that sticks out of the mouth
snout the long nose of an animal
whisker one of the long stiff hairs near the mouth of a cat
voice the sound a person makes when speaking
hair the thin threads that grow on the head
skin the outer covering of the body
fur the thick hair of an animal
child a young boy or girl
boy a young male person
girl a young female person
man an adult male person
woman an adult female person
mother a female parent
brother a boy or man who has the same parents as another
sister a girl or woman who has the same parents as another
son a male child
daughter a female child
grandfather the father of your father or mother
grandmother the mother of your father or mother
widow a woman whose husband is dead
twin one of two children born together
friend a person whom one knows well and likes
enemy a person who wishes to harm another
teacher a person who helps others learn at school
student a person who studies at a school or university
doctor a person who treats the sick
nurse a person who cares for the sick in a hospital
dentist a doctor who treats teeth
surgeon a doctor who operates on people
lawyer a person who advises people about the law
judge a person who decides cases in a court
policeman a man who keeps order and catches criminals
firefighter a person who puts out dangerous fires
soldier a person who serves in an army
sailor a person who works on a ship
captain the officer in command of a ship
pilot a person who flies an aircraft
farmer a person who grows crops or keeps animals
gardener a person who takes care of plants
baker a person who makes bread and cakes
butcher a person who cuts and sells meat
cook a person who prepares food
waiter a person who serves food in a restaurant
carpenter a person who makes things out of wood
plumber a person who repairs water pipes
electrician a person who installs and repairs electric wires
mechanic a person who repairs machines and cars
engineer a person who designs machines, roads or bridges
architect a person who designs buildings
scientist a person who studies nature by careful experiments
chemist a scientist who studies substances
physicist a scientist who studies matter and energy
biologist a scientist who studies living things
astronomer a scientist who studies the stars and planets
mathematician a person who studies numbers and shapes
philosopher a person who thinks about life and knowledge
historian a scholar who studies the past
writer a person who writes books or articles
author a person who has written a book
poet a person who writes poems
painter an artist who makes pictures
singer a person who makes music with the voice
dancer a person who moves to music
actor a person who performs in plays or films
actress a woman who performs in plays or films
king a man who rules a country by birth
queen a woman who rules a country, or the wife of a king
prince the son of a king or queen
princess the daughter of a king or queen
knight a soldier of the Middle Ages in armor on a horse
priest a person who leads religious services
monk a man who lives in a religious community
nun a woman who lives in a religious community
bishop a priest of high rank
thief a person who steals
pirate a person who robs ships at sea
spy a person who secretly gathers information
hunter a person who chases and kills wild animals
shepherd a person who looks after sheep
cowboy a man on horseback who looks after cattle
blacksmith a person who makes things out of iron
tailor a person who makes clothes
barber a person who cuts hair
librarian a person who looks after the books people borrow
journalist a person who writes for newspapers and magazines
photographer a person who takes pictures with a camera
clown a performer who makes people laugh
wizard a man who has magic powers
giant an imaginary person of very great size
dwarf an imaginary very small person in stories
hero a person admired for great courage
passenger a person who travels in a vehicle but does not drive it
customer a person who buys goods or services
merchant a person who buys and sells goods
banker a person who works with money for others
miner a person who digs coal or metal from the earth
beggar a person who asks strangers for money
hermit a person who lives alone away from others
nomad a person who moves from place to place
refugee a person who flees from a country for safety
mayor the elected head of a city
ambassador a person who represents a country abroad
referee a person who makes sure the rules of a game are kept
goalkeeper the player who guards the goal
jockey a person who rides horses in races
acrobat a performer who does difficult jumps and balancing tricks
vegetarian a person who does not eat meat
genius a person of exceptional intelligence
optimist a person who expects good things to happen
pessimist a person who expects bad things to happen
coward a person who lacks courage
tyrant a cruel ruler
rebel a person who fights against those in power
guest a person who is invited to visit
host a person who receives guests
landlord a person who rents out a house or land
person a human being
human a man, woman or child
parent a mother or father
grandparent the father or mother of a parent
grandson the son of a son or daughter
teenager a person between 13 and 19 years old
adult a fully grown person
toddler a child who has just learned to walk
stranger a person one does not know
boss a person who tells workers what to do
worker a person who does a job
manager a person who is in charge of others at work
secretary a person who writes letters and keeps records in an office
programmer a person who writes software
artist a person who makes art
designer a person who plans how things look
detective a person who finds out who did a crime
policewoman a woman who keeps order and catches criminals
criminal a person who breaks the law
prisoner a person locked up in jail
driver a person who steers a vehicle
cashier a person who takes payments in a shop
coach a person who trains a team
player a person who takes part in a game
champion a person who has won a contest
winner a person who comes first in a contest
leader a person whom others follow
politician a person whose job is government
minister a person who leads a church or a part of government
citizen a person who belongs to a country
voter a person who chooses in an election
professor a teacher of high rank at a university
patient a person who is treated by a doctor
veterinarian a doctor who treats animals
pharmacist a person who prepares and sells medicines
psychologist a scientist who studies the mind
inventor a person who makes something new
explorer a person who travels to discover unknown places
fisherman a person who catches fish
viking a Scandinavian sea warrior of long ago
ninja a secret fighter of old Japan
samurai a warrior of old Japan
warrior a person who fights in battles
cyclist a person who rides a bicycle
ghost the spirit of a dead person
witch a woman believed to have magic powers
vampire a dead person in stories who drinks blood
mermaid an imaginary creature, half woman and half fish
angel a heavenly being with wings
god a being that is worshiped
fairy a tiny imaginary person with wings and magic powers
monster a frightening imaginary creature
zombie a dead person in stories who walks again
alien a being from another planet
groom a man who is being married
boyfriend a man with whom someone has a romantic relationship
girlfriend a woman with whom someone has a romantic relationship
partner one of two people who live or work together
president the elected head of a country
family a group of parents and their children
army a large group of soldiers who fight on land
navy the warships and sailors of a country
orchestra a large group of musicians playing together
choir a group of people who sing together
jury a group of people who decide a case in court
parliament the group of people who make the laws of a country
company a group of people who run a business together
committee a small group chosen to decide about a matter
crowd a large number of people close together
herd a large group of cattle or other animals
flock a group of sheep or birds
swarm a large group of flying insects
pack a group of wolves or dogs
forest a large area covered with trees
jungle a thick tropical forest
fleet a group of ships
team a group of people who work or play together
government the group of people who rule a country
class a group of students taught together
club a group of people with a shared interest
band a group of people who play music together
audience the people who watch or listen to a show
nation the people of one country
tribe a group of families living together with one chief
influenza an illness with fever and cough that spreads easily
pneumonia a serious illness of the lungs
malaria a tropical disease spread by mosquitoes
measles a contagious disease with small red spots on the skin
mumps a contagious disease with swelling of the neck
cancer a disease in which cells grow out of control
diabetes a disease in which there is too much sugar in the blood
asthma an illness that makes breathing difficult
anemia a lack of red blood cells
insomnia the inability to sleep
amnesia a loss of memory
rabies a deadly disease spread by the bites of animals
arthritis a painful swelling of the joints
tuberculosis a disease that affects the lungs
smallpox a deadly disease that left scars on the skin
fever a body temperature that is too high
headache a pain in the head
cold an illness with a running nose and a cough
allergy a bad reaction of the body to something harmless
disease something that makes the body ill
"""
