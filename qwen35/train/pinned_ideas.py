"""Glosses of activities, studies, society, feelings, words, verbs and adjectives, one word a line."""

from __future__ import annotations

TEXT = """
game an activity with rules that people play for fun
race a contest of speed
wedding the ceremony at which two people marry
concert a public performance of music
parade a public procession with music
picnic a meal eaten outdoors
war a fight between countries with armies
battle a fight between armies
voyage a long journey by sea
expedition a long journey made for a purpose
festival a day or period of celebration
marathon a running race of about 26 miles
tournament a contest of many games to find one winner
murder the crime of killing a person on purpose
robbery the crime of taking things by force
burglary the crime of entering a house to steal
crime an act that is against the law
experiment a test done to find something out
massage the rubbing of the body to relax it
haircut the trimming of the hair
somersault a roll in which the feet pass over the head
kiss a touch with the lips that shows love
hug a tight embrace with the arms
handshake the act of shaking hands as a greeting
party a meeting of people to eat, drink and have fun
dance a set of steps done to music
trip a short journey
meeting a coming together of people to talk
lesson a period of teaching
exam a test of what a person knows
job the work that a person does for pay
hobby a thing a person likes to do in free time
vacation a time of rest away from work or school
contest an event in which people try to win
revolution the overthrow of a government by the people
adventure an exciting and dangerous experience
football a game in which two teams kick or carry a ball
baseball a game in which teams hit a ball and run around bases
basketball a game in which teams throw a ball through a high hoop
tennis a game in which players hit a ball over a net
golf a game in which a small ball is hit into holes
hockey a game played on ice with sticks and a puck
soccer a game in which two teams kick a ball into a goal
chess a board game for two players with kings, queens and pawns
poker a card game in which players bet money
boxing the sport of fighting with the fists
wrestling the sport of throwing or holding down an opponent
fencing the sport of fighting with swords
swimming the sport of moving through water
skiing the sport of sliding over snow on two long boards
surfing the sport of riding waves on a board
gymnastics the sport of exercises that show strength and balance
yoga a system of exercises for body and mind from India
karate a Japanese way of fighting with hands and feet
judo a Japanese sport of throwing an opponent
dancing moving the body to music
ballet a graceful dance that tells a story on stage
cooking the preparing of food with heat
fishing the catching of fish
hunting the chasing and killing of wild animals
farming the work of growing crops and keeping animals
agriculture the growing of crops and raising of animals for food
gardening the work of growing plants around a house
carpentry the making of things out of wood
piracy robbery of ships at sea
badminton a game in which a light feathered ball is hit over a net
volleyball a game in which two teams hit a ball over a high net
work effort made to do or make something
sport games and exercise done for fun or health
exercise moving the body to stay healthy
music sounds arranged in a pleasant way
art the making of beautiful things
photography the making of pictures with a camera
sailing traveling over water in a boat moved by wind
cycling the sport of riding a bicycle
skating gliding over ice or ground on special shoes
rowing moving a boat with oars
running moving fast on foot as a sport
jogging running slowly for exercise
checkers a board game for two players with round pieces
jazz lively music first played by Black Americans
theft the crime of taking what belongs to another
surgery the treatment of illness by cutting into the body
bowling a game in which balls are rolled at pins
mathematics the science of numbers and shapes
arithmetic the adding, subtracting, multiplying and dividing of numbers
algebra the mathematics that uses letters for numbers
geometry the mathematics of points, lines and shapes
calculus the mathematics of change and motion
statistics the mathematics of collecting and studying numbers
physics the science of matter and energy
chemistry the science of substances and how they change
biology the science of living things
astronomy the science of stars and planets
geology the science of rocks and the earth
psychology the science of the mind
philosophy the study of life, knowledge and right and wrong
history the study of past events
geography the study of the lands of the earth
economics the science of money and trade
logic the study of correct reasoning
astrology the belief that the stars guide our lives
ecology the study of living things and their surroundings
law a rule made by a government
rule a statement of what is allowed
tax a payment that people must make to the government
election an event in which people choose their leaders
vote a choice made in an election
court a place where judges decide cases
bill a paper that shows how much must be paid
price the amount of money that a thing costs
debt a sum of money that is owed to someone
loan a sum of money that is lent
salary the money a person earns at work
budget a plan for spending money
business the making or selling of things for money
religion a belief in gods and how to worship them
language the words that the people of a country speak
culture the way of life of a people
tradition a custom passed down for many years
right a thing that a person is allowed by law
republic a country whose head is elected
kingdom a country ruled by a king or queen
money coins and paper used to buy things
cash coins and paper money
democracy government by the people through elections
peace a time without war
education teaching and learning
insurance payment against the cost of an accident or a loss
marriage the legal union of two people as a couple
slavery the owning of people as property
society people living together under shared rules
poverty the state of being very poor
wealth a large amount of money or property
trade the buying and selling of goods
police the people who keep order and catch criminals
love a strong feeling of deep affection
joy a feeling of great happiness
anger the strong feeling of being annoyed
fear the feeling that danger is near
hate a feeling of very strong dislike
jealousy the painful wish to have what another has
envy the wish to have what someone else has
pride the feeling of being pleased with what one has done
shame the painful feeling of having done something wrong
guilt the bad feeling of having done wrong
sadness the feeling of being unhappy
happiness the feeling of being glad
hope the feeling that something good will happen
surprise the feeling caused by something unexpected
disgust a strong feeling of dislike
boredom the feeling of having nothing interesting to do
loneliness the sad feeling of being without company
hunger the need for food
thirst the need to drink
pain an unpleasant feeling in a part of the body that is hurt
excitement a lively feeling of joy about what will happen
stress the strain felt under too much pressure
grief deep sadness after a death or a loss
gratitude the feeling of being thankful
empathy the ability to share the feelings of others
anxiety a feeling of worry about what may happen
freedom the power to act as one wishes
justice fair treatment for everyone
truth what agrees with the facts
trust the belief that someone is honest
loyalty the quality of staying true to a person or cause
luck good or bad things that happen by chance
intelligence the ability to learn and understand
imagination the ability to form pictures in the mind
memory the ability to keep things in mind
knowledge what a person knows and understands
strength the quality of being strong
health the state of being well
life the state that separates plants and animals from stones
death the end of life
friendship the bond between people who like each other
success the reaching of what one wanted
failure the state of not having reached a goal
curiosity the wish to know or learn
creativity the ability to make new things
respect the feeling that someone is worthy and important
greed the wish to have more than one needs
courage the strength to face danger without fear
honesty the quality of telling the truth
patience the ability to wait calmly
kindness the quality of being friendly and helpful
beauty the quality that gives pleasure to the senses
wisdom the ability to use knowledge with good sense
word a unit of language that has a meaning
sentence a group of words that makes a complete statement
letter a written message sent to a person
alphabet the set of letters used to write a language
vowel a speech sound such as a, e, i, o or u
noun a word that names a person, place or thing
verb a word that names an action
adjective a word that describes a person or thing
adverb a word that tells how or when something is done
pronoun a word that takes the place of a noun
question a sentence that asks for an answer
answer something said in reply to a question
joke a short funny story that makes people laugh
riddle a puzzling question asked as a game
story an account of events, real or imagined
novel a long made-up story in a book
poem a piece of writing in lines, often with rhyme
song a short piece of music with words
lullaby a quiet song that helps a child fall asleep
symphony a long piece of music for an orchestra
opera a play in which the words are sung
diary a book in which a person writes about each day
newspaper a set of printed sheets with the news of the day
magazine a thin book published every week or month
map a drawing that shows where places are
recipe a list of directions for making a dish
ticket a card that shows that a person has paid
passport a document that lets a person travel abroad
email a message sent from one computer to another
proverb a short well-known saying that gives advice
fable a short story with animals that teaches a lesson
myth an old story about gods and heroes
legend an old story that may not be true
biography the story of a person's life
autobiography the story of a person's own life
comma a punctuation mark that separates parts of a sentence
synonym a word with the same meaning as another
antonym a word with the opposite meaning of another
palindrome a word that reads the same backward as forward
anagram a word made by changing the order of the letters of another
metaphor a figure of speech that calls one thing another
name the word by which a person or thing is known
number a word or sign that tells how many
fraction a part of a whole number, such as one half
text a piece of written or printed words
page one side of a sheet in a book
chapter a main part of a book
rhyme a word that ends with the same sound as another
secret a thing that is kept hidden from others
promise a statement that one will surely do something
lie a statement that a person knows is not true
fairytale a story for children about magic
melody a row of musical notes that forms a tune
run move fast on foot
jump push oneself off the ground with the legs
sing make music with the voice
sleep rest with the eyes closed and the mind not awake
eat take in food through the mouth
drink take in a liquid through the mouth
write put words on paper
read look at written words and understand them
laugh make sounds that show joy or amusement
cry let tears fall from the eyes
sneeze blow air suddenly through the nose
cough push air from the throat with a sudden noise
yawn open the mouth wide when tired
shout speak in a very loud voice
climb go up using hands and feet
crawl move slowly on hands and knees
bake cook in an oven
fry cook in hot fat
sew join cloth with needle and thread
knit make cloth by linking loops of yarn
borrow get something for a time and then give it back
lend give for a time
steal take what belongs to another without permission
forget fail to remember
remember keep something in the mind
forgive stop being angry about a fault
apologize say that one is sorry
walk move on foot at an easy speed
teach help someone to learn
learn gain knowledge or skill
think use the mind
speak say words aloud
listen pay attention to sound
smile turn up the corners of the mouth in pleasure
buy get something by paying for it
sell give something in return for money
give hand something to another person
build make something by putting parts together
throw send something through the air with the hand
catch take hold of something that is moving
push press against something to move it away
pull draw something toward oneself
dig make a hole in the ground
cut divide with a sharp blade
open move something so that it is not shut
break separate into pieces by force
repair make something broken work again
travel go from one place to another
win be the best in a contest
lose no longer have something
hide put something where no one can see it
help do something useful for another person
dream see pictures in the mind while asleep
breathe take air into the body and let it out
chew crush food with the teeth
boil heat a liquid until it bubbles
celebrate have a party for a special reason
invent make something that did not exist before
explain make something easy to understand
share let others have a part of something
happy feeling joy or pleasure
sad feeling unhappy
angry feeling very annoyed
brave not afraid of danger
lazy not willing to work
hungry wanting to eat
thirsty wanting to drink
empty having nothing inside
modern belonging to the present time
dangerous likely to cause harm
invisible impossible to see
transparent clear enough to see through
enormous extremely large
honest telling the truth and not cheating
polite having good manners
rude having bad manners
fragile easily broken
nocturnal active at night
edible safe to eat
deaf unable to hear
bald having no hair on the head
tall of great height
huge very large
old having lived or existed for a long time
young having lived for only a short time
fast moving quickly
slow taking a long time
strong having great power
weak having little power
rich having a lot of money
poor having little money
hot having a high temperature
heavy having great weight
beautiful very pleasing to look at
ugly unpleasant to look at
clever quick to learn and understand
funny making people laugh
tired needing rest
wet covered with water
quiet making little noise
loud making a lot of noise
expensive costing a lot of money
cheap costing little money
famous known by many people
lonely sad because one has no company
jealous wanting what another has
curious eager to know or learn
shy nervous with other people
generous willing to give much to others
selfish caring only about oneself
blind unable to see
"""
