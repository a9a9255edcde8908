"""The words around passages: many ways to ask for the same thing, so that no drafter learns one of them by heart.

{text} is the passage, {term} a word or name in it, {language} a language, {n} a small number.
"""

import re

SUMMARY = (
    "Summarize: {text}",
    "Summarize the following text:\n\n{text}",
    "Summarize this in {n} sentences.\n\n{text}",
    "{text}\n\nTL;DR",
    "{text}\n\nSummarize the text above.",
    "Write a short summary of this text:\n\n{text}",
    "Please summarise the article below in one paragraph.\n\n{text}",
    "What are the main points of the following passage?\n\n{text}",
    "Give me the key points as a bulleted list:\n\n{text}",
    "Condense this into {n} bullet points:\n{text}",
    "I have no time to read this. What does it say?\n\n{text}",
    'Text:\n"""\n{text}\n"""\nSummary:',
    "Write a headline and a two-sentence summary for this text.\n\n{text}",
    "Explain in simple words what this text is about:\n\n{text}",
    "Rewrite the following more briefly, keeping every important fact:\n\n{text}",
    "Article: {text}\n\nWrite a brief summary of the article.",
    "In one sentence, what is this about?\n\n{text}",
)

QUESTIONS = (
    "What does the text say about {term}?",
    "What is {term}, according to the text?",
    "What role does {term} play here?",
    "Why is {term} mentioned?",
    "Which facts are given about {term}?",
    "How is {term} described?",
    "What is the main idea?",
    "Who or what is {term}?",
    "What should a reader remember about {term}?",
    "Which conditions or exceptions does the text mention?",
    "What happens, and in which order?",
    "What problem is described, and what is done about it?",
)
# {passages} stands for one or several passages, {question} for one of the above.
EXTRACTION = (
    "{passages}\n\nQuestion: {question}\nAnswer:",
    "Answer the question from the passages only.\n\n{passages}\n\nQuestion: {question}",
    "Use the following context to answer the question at the end. If the answer is not there, say so.\n\n{passages}\n\n"
    "{question}",
    "Context:\n{passages}\n\nUsing only this context, answer: {question}",
    "{question}\n\nHere is what I found:\n{passages}",
    "Read the documents and answer in one or two sentences.\n\n{passages}\n\nQ: {question}\nA:",
    "{passages}\n\nBased on the text above: {question} Quote the sentence that supports your answer.",
    "You are given search results. Answer the question and name the passage you used.\n\n{passages}\n\n{question}",
    "Given these notes: {question}\n\n{passages}",
)
LISTING = (
    "List all names that appear in this text:\n\n{text}",
    "{text}\n\nWhich numbers, dates and amounts does the text contain? List them with their meaning.",
    'Extract the most important facts as JSON with the keys "topic", "names" and "facts".\n\n{text}',
    'Return a JSON object with "title", "summary" and "keywords" for this text:\n\n{text}',
    "Make a table with two columns, term and meaning, from this text:\n\n{text}",
    "Write down every instruction or rule in the following text, one per line.\n\n{text}",
    "{text}\n\nWrite three questions that this text answers, with their answers.",
    "Find the sentence that mentions {term} and repeat it word for word.\n\n{text}",
    "Extract five keywords from the passage below.\n\n{text}",
)
PASSAGE_MARKS = ("Passage {i}: {text}", "[{i}] {text}", "Document {i}\n{text}", "({i}) {text}", "Source {i}: {text}")

# {documents} are numbered, {n} of them; {question} is about one.
RETRIEVAL = (
    "Answer the question with the help of the documents. Rely on nothing else.\n\n{documents}\n\nQuestion: {question}",
    "Question: {question}\n\nThese documents may or may not help:\n\n{documents}\n\nAnswer from the documents.",
    "{documents}\n\nOne of these documents holds the answer to this question: {question}",
    "Your task is to answer from a set of documents and to name the number of the one you used.\n\n{documents}\n\n"
    "Question: {question}\nAnswer:",
    "I searched for: {question}\n\nThis came back:\n\n{documents}\n\nWhat is the answer?",
    "Documents:\n{documents}\n\nBy these documents alone, answer in a short phrase: {question}",
    "Here are {n} texts. Only one is about what I want to know. Find it and answer: {question}\n\n{documents}",
    "Extracts from our archive:\n\n{documents}\n\nA reader asks: {question}\nReply in two or three sentences. If the "
    "extracts do not tell, say that they do not.",
    "{question}\n\nUse these sources, and put the number of the source in brackets behind each claim.\n\n{documents}",
    "Read all of this first.\n\n{documents}\n\nNow my question. {question}",
    "{documents}\n\n{question}\nDo not guess: the documents are all you know.",
    "Somebody who has only the following pages at hand is asked: {question}\n\n{documents}\n\nWhat should the answer "
    "be?",
    "### Documents\n\n{documents}\n\n### Question\n\n{question}\n\n### Answer\n",
)
DOCUMENT_MARKS = (
    "Document {i} ({title}): {text}",
    "[{i}] {title}\n{text}",
    "{i}. {title}: {text}",
    "Source {i}, {title}\n{text}",
    "Title: {title}\nNumber: {i}\n{text}",
)
# What a search for {term} might ask; {term} stands in the right document.
SEARCHES = (
    "What do the documents say about {term}?",
    "What is {term}?",
    "what is {term}",
    "Who or what is {term}?",
    "Why is {term} important?",
    "how does {term} work",
    "Which document mentions {term}, and what does it say?",
    "what is {term} used for",
    "When does {term} play a role?",
    "What is known about {term}?",
    "{term} explained",
    "What has {term} to do with {other}?",
    "Is there anything about {term} in here?",
    "Where does {term} come up?",
)
# The target itself makes up what is asked.
ASK = (
    "Write one question that this text answers:\n\n{text}",
    "{text}\n\nWhich question would lead somebody to this text? Write one short question.",
    "Make up a quiz question about the following paragraph. Write only the question.\n\n{text}",
    "Here is a paragraph:\n\n{text}\n\nAsk me something that can be answered from it.",
    "Read this and ask a question about it, in one sentence.\n\n{text}",
)
ENTRIES = (
    "Tell me about {name}.|Write an encyclopedia entry about {name}.|Describe {name} in two paragraphs.|What should "
    "I know about {name}?|Write a paragraph about {name} and one about its history.|Explain what is special about "
    "{name}.|Write three short paragraphs about {name}.|Give me some background on {name}.|Write the text of a "
    "museum sign about {name}."
).split("|")
ARTICLES = (
    "Write a long article about {name}.|Write a news report with several paragraphs: in {place}, {news}.|Write a "
    "detailed news story for a local newspaper. Headline: in {place}, {news}.|Write an essay about {name} and "
    "{other}.|Report for television on this: in {place}, {news}. Quote two people.|Tell the whole history of {name}.|"
    "Write a chapter of a textbook about {name}.|Write a long feature article about a family in {place} where "
    "{news}.|Write a magazine article: what {name} means to us today."
).split("|")
NEWS = (
    "a bridge is closed after a flood|a bakery wins a national prize|a lost dog finds its way home after two years|"
    "the teachers go on strike|a new museum opens its doors|a fire destroys a warehouse|scientists discover a new "
    "kind of beetle|the football club dismisses its coach|a student builds a solar boat|the mayor resigns after a "
    "dispute about money|a storm leaves thousands without electricity|an old painting is found in an attic|two "
    "trains collide and nobody is hurt|a hospital runs out of beds|the price of bread rises again|a bank is robbed "
    "in broad daylight|a court rules on a famous inheritance|wolves return to the forest|a factory will close at the "
    "end of the year|a pilot lands safely in a field|volunteers clean the river|a twelve-year-old wins a chess "
    "tournament|the library is saved by its readers|a singer gives a farewell concert|doctors warn of a new virus|a "
    "couple marries after fifty years apart|farmers protest against a new distribution|a cyclist is found alive after three "
    "days|the airport is closed by fog|a police officer is charged with theft|a school bans telephones|an earthquake "
    "shakes the old town"
).split("|")
# {language}: what the target is to write in, about {name}.
FOREIGN = (
    "Write one sentence in {language} about {name}.",
    "Say something about {name} in {language}.",
    "Write two sentences about {name} in {language}. No English, please.",
    "How would a newspaper write about {name} in {language}? One sentence is enough.",
)

TRANSLATION = (
    "Translate into {language}: {text}",
    "Translate the following sentence to {language}:\n{text}",
    "How do you say this in {language}? {text}",
    "{text}\n\nTranslate this text into {language}.",
    "Please give me a {language} translation of: {text}",
    'What is "{text}" in {language}?',
    "English: {text}\n{language}:",
    "Translate from English to {language}. Give only the translation.\n\n{text}",
    "I need this in {language}:\n\n{text}",
    "Translate English to {language}: {text}",
)
BACK = (
    "Translate {language} to English: {text}",
    "Translate into English: {text}",
    "What does this {language} sentence mean in English? {text}",
    "{language}: {text}\nEnglish:",
    "Please translate the following {language} text to English.\n\n{text}",
    "I received this message in {language}. What does it say?\n{text}",
    "{text}\n\nPut this {language} text into good English.",
    "Translate from {language} to English. Give only the translation.\n\n{text}",
    "English translation of the {language} sentence below, please.\n{text}",
)

CODE = (
    "Explain what this {language} code does:\n\n{fence}",
    "Explain this function step by step.\n{fence}",
    "Write a docstring for this code:\n{fence}",
    "Add comments to the following {language} code.\n\n{fence}",
    "Find possible bugs in this code and fix them:\n\n{fence}",
    "Refactor this {language} code so that it is easier to read:\n{fence}",
    "Write unit tests for this:\n\n{fence}",
    "What are the inputs and outputs of this code?\n\n{fence}",
    "Review this code and suggest improvements.\n{fence}",
    "Rename the variables to something clearer and show the whole code again:\n\n{fence}",
)
COMPLETE = (
    "Complete this {language} code:\n{fence}",
    "Continue the following function. Write only code.\n\n{fence}",
    "{text}\n\nFinish this.",
    "Here is the beginning of a function. Write the rest of it:\n{fence}",
)
TASKS = (
    "reverses a string|counts the vowels in a text|checks whether a word is a palindrome|returns the n-th Fibonacci "
    "number|finds the largest number in a list|removes duplicates from a list|sorts a list of dictionaries by a key|"
    "merges two sorted lists|computes the factorial of a number|checks whether a number is prime|reads a CSV file "
    "and sums a column|counts how often each word occurs|converts Celsius to Fahrenheit|finds the longest common "
    "prefix of some strings|flattens a nested list|implements binary search|implements a stack|validates an email "
    "address|generates a random password|groups words by their first letter|transposes a matrix|computes the median "
    "of some numbers|rotates a list by k places|counts the lines of a file|parses a date like 2021-05-30|finds all "
    "pairs that add up to a given sum|encodes a text with a Caesar cipher|computes the greatest common divisor|"
    "prints a multiplication table|checks whether brackets are balanced|downloads a web page|converts a Roman "
    "numeral to a number|implements a queue with two stacks|computes a moving average|draws a triangle of stars|"
    "finds the missing number in a sequence|splits a list into chunks|retries a function that may fail|caches the "
    "results of a function|walks through a binary tree in order|finds the shortest path in a graph|simulates rolling "
    "two dice|converts a list to a comma-separated text|computes compound interest|truncates a text at a word border|"
    "compares two version numbers"
).split("|")
TASK_WORDINGS = (
    "Write a {language} function that {task}.",
    "Write a {language} program that {task}.",
    "Can you show me {language} code that {task}?",
    "I need a {language} function that {task}. Add a short explanation.",
    "Implement in {language}: a function that {task}. Include an example call.",
    "How would you write a function that {task} in {language}?",
    "Give me a simple {language} script that {task} and explain it line by line.",
    "Write a function `{name}` in {language} that {task}. Return only the code.",
)
TASK_LANGUAGES = ("Python",) * 6 + ("JavaScript", "Java", "C", "C++", "Go", "Rust", "SQL", "Bash", "TypeScript")

ABOUT = (
    "What is {name}?|Who or what is {name}?|Tell me about {name}.|What do you know about {name}?|When did {name} "
    "begin?|Why is {name} important?|Where can I learn more about {name}?|Explain {name} to a ten-year-old.|What are "
    "the advantages and disadvantages of {name}?|Give me three facts about {name}.|How does {name} work?|What is the "
    "history of {name}?|Who uses {name}, and for what?|Write a short paragraph about {name}.|What are common "
    "misunderstandings about {name}?|Compare {name} with {other}.|What is the difference between {name} and {other}?|"
    "What does {name} have to do with {other}?|Why do people talk about {name}?|Name five things connected with "
    "{name}.|How did {name} change over time?|What would happen without {name}?|Is {name} better than {other}?|"
    "Define {name} in one sentence.|who invented {name}|when was {name} first described|origin of {name}|"
    "what is {name} used for|different kinds of {name}|who discovered {name}|which country is known for "
    "{name}|why is {name} called that"
).split("|")
TOPICS = (
    "photosynthesis|the Roman Empire|volcanoes|inflation|the French Revolution|black holes|democracy|vaccines|chess|"
    "the Amazon rainforest|the printing press|gravity|tea|earthquakes|the Silk Road|jazz|solar panels|the human "
    "heart|coral reefs|the stock market|the Renaissance|bees|electric cars|the moon|coffee|World War I|glaciers|"
    "antibiotics|the violin|the Olympic Games|machine learning|the water cycle|the Great Wall of China|DNA|penguins|"
    "the steam engine|rainbows|bread|the Middle Ages|plastic|sleep|the alphabet|the immune system|kites|the Internet|"
    "whales|paper|salt|the compass|opera|bridges|dinosaurs|magnets|the calendar|yoga|hurricanes|cheese|the telescope|"
    "batteries|migration|rice|the periodic table|tides|sugar|comets|the bicycle|poetry|mushrooms|the Sahara|"
    "lightning|the piano|wind turbines|taxes|the pyramids of Egypt|memory|fermentation|the microscope|football|the "
    "Vikings|glass|allergies|the subway|wolves|insurance|silk|the equator|the camera|rubber|the brain|gold|cats|"
    "elections|compost|the lighthouse|vitamin C|tennis|the Mongol Empire|concrete|the nervous system|honey|the "
    "helicopter|parliaments|origami|the North Star|the zipper|blood types|the Black Death|maple syrup|robots|the "
    "abacus|spiders|ballet|encryption|the Panama Canal|perfume|nuclear energy|the flute|the Inca|chocolate|the "
    "elevator|dreams|asteroids"
).split("|")
DAILY = (
    "How do I {task}?|What is the best way to {task}?|Can you help me {task}?|Give me tips on how to {task}.|I want "
    "to {task}. Where do I start?|What do I need to {task}?|how to {task} quickly|What mistakes should I avoid when "
    "I {task}?|How long does it take to {task}?|Make a checklist for somebody who wants to {task}.|Write "
    "step-by-step instructions: how to {task}."
).split("|")
CHORES = (
    "learn a new language|fix a leaking tap|write a cover letter|train a puppy|grow tomatoes|save money|bake bread|"
    "fall asleep faster|prepare for an interview|plan a birthday party|clean a keyboard|start running|choose a "
    "laptop|remove a coffee stain|write a short story|learn the guitar|pack for a trip|cook rice|ask for a raise|"
    "give a speech|change a tire|read more books|paint a room|stop procrastinating|make new friends|build a "
    "bookshelf|take better photos|sharpen a knife|write a poem|set up a website|eat healthier|study for an exam|"
    "repair a bicycle|knit a scarf|organize a desk|move to another city|apologize to a friend|plant a tree|lose "
    "weight|teach a child to read|back up my files|make a budget|brew coffee|fold a paper plane"
).split("|")


def fill(wording: str, **parts: str) -> str:
    """Each {word} once, and nothing inside what is put in: passages hold braces of their own."""
    return re.sub(r"\{(\w+)\}", lambda found: parts.get(found[1], found[0]), wording)
