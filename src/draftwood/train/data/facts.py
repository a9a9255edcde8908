"""Subjects of many kinds, and short questions that fit their kind: what people type when they want one fact."""

import random
import re

_LISTS = {
    "country": "Norway|Brazil|Japan|Kenya|Canada|Egypt|Mexico|Poland|Vietnam|Chile|Turkey|Iceland|Morocco|India|"
    "Portugal|Peru|Finland|Thailand|Cuba|Greece|Nepal|Ireland|Ghana|Sweden|Argentina|Jordan|Hungary|Indonesia|"
    "Ethiopia|Switzerland|New Zealand|South Korea|Romania|Bolivia|Madagascar|Austria|Mongolia|Denmark|Tunisia|"
    "Malaysia|Croatia|Uruguay",
    "city": "Paris|Nairobi|Lima|Toronto|Osaka|Prague|Cairo|Chicago|Lisbon|Mumbai|Seoul|Boston|Istanbul|Vienna|Havana|"
    "Dublin|Sydney|Athens|Denver|Hanoi|Barcelona|Oslo|Jakarta|Seattle|Naples|Edinburgh|Montreal|Warsaw|Bogota|"
    "Helsinki|Detroit|Marseille|Krakow|Manila|Zurich|Porto|Austin|Glasgow|Hamburg|Kyoto",
    "person": "Marie Curie|Julius Caesar|Frida Kahlo|Isaac Newton|Cleopatra|Nelson Mandela|Ada Lovelace|Galileo "
    "Galilei|Johann Sebastian Bach|Rosa Parks|Charles Darwin|Jane Austen|Leonardo da Vinci|Alan Turing|Florence "
    "Nightingale|Simon Bolivar|Vincent van Gogh|Amelia Earhart|Confucius|Louis Pasteur|Joan of Arc|Nikola Tesla|"
    "Mozart|Marco Polo|Queen Victoria|Abraham Lincoln|Hypatia|Johannes Gutenberg|Harriet Tubman|Archimedes|Beethoven|"
    "Mahatma Gandhi|Ernest Shackleton|Agatha Christie|Gregor Mendel|Genghis Khan|Rachel Carson|Michael Faraday|"
    "Socrates|Neil Armstrong",
    "animal": "octopus|blue whale|hedgehog|giraffe|honeybee|emperor penguin|cheetah|bat|salmon|elephant|crocodile|"
    "owl|kangaroo|chameleon|otter|camel|sloth|beaver|eagle|jellyfish|polar bear|hummingbird|tortoise|moose|platypus|"
    "ant|dolphin|seahorse|lynx|flamingo|koala|squid|peacock|earthworm|gorilla",
    "thing": "telephone|compass|bicycle|light bulb|microscope|paper clip|refrigerator|radio|typewriter|parachute|"
    "barometer|zipper|stethoscope|printing press|thermometer|sewing machine|battery|elevator|camera|piano|umbrella|"
    "helicopter|pencil|windmill|steam engine|toothbrush|calculator|traffic light|lighthouse|vacuum cleaner|microwave "
    "oven|submarine",
    "event": "the First World War|the moon landing|the fall of the Berlin Wall|the Great Fire of London|the French "
    "Revolution|the Black Death|the Industrial Revolution|the sinking of the Titanic|the eruption of Vesuvius|the "
    "Gold Rush|the Cuban missile crisis|the Great Depression|the Boston Tea Party|the Battle of Waterloo|the Russian "
    "Revolution|the Hundred Years' War|the signing of the Magna Carta|the Chernobyl disaster|the Norman conquest|the "
    "Cold War",
    "substance": "iron|salt|helium|gold|carbon dioxide|mercury|aspirin|glass|oxygen|rubber|ammonia|copper|caffeine|"
    "chlorine|diamond|insulin|steel|penicillin|sulphur|ozone|hydrogen|lead|starch|calcium|titanium|ethanol|aluminium|"
    "vitamin D",
    "organ": "heart|liver|kidneys|lungs|spleen|brain|thyroid gland|stomach|pancreas|inner ear|skin|retina|appendix|"
    "spinal cord|gall bladder|immune system|tongue|cerebellum|red blood cells|tonsils",
    "work": "Hamlet|Don Quixote|The Odyssey|Moby Dick|Pride and Prejudice|The Starry Night|Frankenstein|Faust|War "
    "and Peace|The Magic Flute|Alice in Wonderland|Dracula|The Nutcracker|Robinson Crusoe|The Scream|Les Miserables|"
    "Macbeth|Gulliver's Travels|The Four Seasons|Jane Eyre|Treasure Island|The Divine Comedy|Carmen|The Jungle Book",
    "nature": "Mount Everest|the Nile|the Sahara|Lake Baikal|the Grand Canyon|Niagara Falls|Mount Fuji|the Danube|"
    "the Dead Sea|the Great Barrier Reef|Saturn|Jupiter|Mars|the Milky Way|the Gobi Desert|the Mississippi River|"
    "Mount Kilimanjaro|the Pacific Ocean|the Black Forest|Halley's Comet|the Andes|the Arctic|Venus|the Amazon River|"
    "the Alps",
    "sport": "tennis|football|chess|basketball|rugby|cricket|baseball|volleyball|judo|golf|ice hockey|fencing|rowing|"
    "badminton",
}
LISTS = {kind: text.split("|") for kind, text in _LISTS.items()}

_ASKED = {
    "country": "What is the capital of {x}?|How many people live in {x}?|Which languages are spoken in {x}?|What "
    "currency does {x} use?|Which countries border {x}?|What is the national dish of {x}?|When did {x} become "
    "independent?|Who leads the government of {x}?|What is the highest mountain in {x}?|What does the flag of {x} "
    "look like?|Is {x} larger than {y}?",
    "city": "In which country is {x}?|What is {x} famous for?|Which river flows through {x}?|How old is {x}?|What is "
    "the weather like in {x} in January?|How far is it from {x} to {y}?|Who founded {x}?|What is the name of the "
    "airport of {x}?|How many people live in {x}?|What should I see in {x} in one day?",
    "person": "Who was {x}?|When was {x} born?|Where did {x} grow up?|What is {x} best known for?|How did {x} die?|"
    "In which century did {x} live?|Which language did {x} speak?|Was {x} ever married?|What did {x} do before "
    "becoming famous?|Did {x} and {y} live at the same time?",
    "animal": "What does the {x} eat?|How long does the {x} live?|Where does the {x} live?|How fast is the {x}?|How "
    "does the {x} sleep?|How many young does the {x} have?|What eats the {x}?|Is the {x} endangered?|How heavy can "
    "the {x} get?|Which is larger, the {x} or the {y}?",
    "thing": "Who invented the {x}?|When was the {x} invented?|How does the {x} work?|What was used before the {x}?|"
    "What are the parts of the {x} called?|Which came first, the {x} or the {y}?|In which country was the {x} first "
    "made?|Why was the {x} invented?",
    "event": "When did {x} happen?|What caused {x}?|Who took part in {x}?|How long did {x} last?|Where did {x} take "
    "place?|What came after {x}?|How many people died in {x}?|Why is {x} remembered?|Which happened first, {x} or "
    "{y}?",
    "substance": "What is the chemical formula of {x}?|What is {x} used for?|Where does {x} come from?|Is {x} "
    "poisonous?|Who discovered {x}?|At which temperature does {x} melt?|What colour is {x}?|What happens when {x} "
    "meets {y}?|How is {x} made?",
    "organ": "What does the human {x} do?|Where in the body is the {x}?|How large is the {x}?|Can one live without "
    "the {x}?|Which diseases affect the {x}?|What keeps the {x} healthy?|What is the {x} made of?",
    "work": "Who created {x}?|What is {x} about?|When did {x} first appear?|Who are the main characters of {x}?|"
    "Where is {x} set?|How does {x} end?|Which is older, {x} or {y}?|Why is {x} famous?",
    "nature": "Where is {x}?|How big is {x}?|How was {x} formed?|Who first explored {x}?|What is the temperature at "
    "{x}?|What is special about {x}?|How did {x} get its name?|Which is larger, {x} or {y}?|How old is {x}?",
    "sport": "How many players are on a team in {x}?|How long does a game of {x} last?|Where was {x} invented?|Who "
    "is the best player in the history of {x}?|What equipment is needed for {x}?|How are points counted in {x}?|Is "
    "{x} an Olympic sport?",
}
ASKED = {kind: text.split("|") for kind, text in _ASKED.items()}
BRIEF = ("", "", "", "", " Answer in one sentence.", " Be brief.", " Give only the answer.", " Explain shortly.")


def fact_question(rng: random.Random) -> str:
    """One fact about one subject; four in ten as typed into a search box, without capitals or a question mark."""
    kind = rng.choice(sorted(LISTS))
    x, y = rng.sample(LISTS[kind], 2)
    asked = re.sub(r"\{(\w)\}", lambda found: x if found[1] == "x" else y, rng.choice(ASKED[kind]))
    if rng.random() < 0.4:
        return asked[0].lower() + asked[1:].rstrip("?")
    return asked + rng.choice(BRIEF)


def subject(rng: random.Random) -> str:
    """Something to write about."""
    kind = rng.choice(sorted(LISTS))
    name = rng.choice(LISTS[kind])
    return f"the {name}" if kind in ("animal", "thing", "organ") else name
