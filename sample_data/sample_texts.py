"""The texts of the sample files, all written for this project. `make_samples.py` lays them out."""

SYSTEM_PROMPT = (
    "You are a careful assistant that works through a list of short text tasks for the customer "
    "team of Harbour Lane, an online shop for kitchen and garden goods. Each message holds one "
    "task and, where needed, the text it is about. Do exactly what the task asks and answer in "
    "plain English. Use only what the text says and never invent names, dates or prices. When the "
    "task asks for a label, answer with the label alone. When it asks for a piece of the text, "
    "answer with that piece alone. When it asks you to rewrite a sentence, keep its meaning and "
    "answer with the new sentence alone. When it asks a question, answer in one short sentence. "
    "Do not explain your answer and do not add a greeting."
)

SENTIMENT_TEXTS = (
    "The kettle boils in two minutes and looks lovely on the counter. I would buy it again.",
    "Arrived with a cracked lid, and nobody has answered my three emails.",
    "The spade is light, strong and sharp. Digging the beds was almost fun this year.",
    "I wanted to like this pan, but everything sticks to it after a week.",
    "Best bread knife I have ever owned!",
    "The watering can leaks from the handle, so my shoes are wet every morning.",
    "My daughter gave me these mugs and I smile each time I use one.",
    "Too small, too thin and far too expensive for what it is.",
    "Delivery was a day early and the seedlings were in perfect shape.",
    "The scale shows a different weight every time. Useless for baking.",
    "Soft gloves that fit well. Even the thorns of my roses do not get through.",
    "The blender stopped working on the third day and smelled of smoke.",
)

PROBLEM_TEXTS = (
    "My card was charged twice for the same order.",
    "The tracking page has said 'out for delivery' since Monday.",
    "The blue apron is the wrong size, so I have to send it back.",
    "The motor of the mixer makes a grinding noise.",
    "I still have not received the parcel you sent last week.",
    "The name of the company on my invoice is wrong.",
    "I cannot return the gift because I lost the receipt.",
    "The handle of the rake broke off while I was using it.",
    "You took 49 euros from my account, but the order was cancelled.",
    "The driver left the box at a house I do not know.",
    "I changed my mind about the tea set and would like my money back.",
    "One of the four wine glasses has a chip in the rim.",
)

EXTRACT_TASKS = (
    ("What is the name of the customer?", "Hello, this is Marta Lindqvist. I have a question."),
    ("What is the price?", "The cast iron pot now costs 64.50 euros, and shipping is free."),
    ("Which city is named in the text?", "Our new store in Rotterdam opens in the spring."),
    ("Which date is named in the text?", "Please deliver the bench on 14 May, before noon."),
    ("What is the order number?", "I am writing about order HL-20418, which came incomplete."),
    ("Which product is the text about?", "The copper kettle I bought from you has a loose handle."),
    ("What is the name of the customer?", "Kind regards from rainy Bergen, Jonas Eide."),
    ("Which city is named in the text?", "I moved to Lisbon last month. Please update my address."),
    ("What is the price?", "I paid 19 dollars for the herb scissors and want a refund."),
    ("Which date is named in the text?", "The parcel was sent on 3 November and never arrived."),
    ("How many items were ordered?", "We ordered 24 cups for the office, and they look great."),
    ("What is the email address?", "You can write to me at priya.nair@example.com any time."),
    (
        "Which colour does the customer want?",
        "I would like the garden chair in dark green, please.",
    ),
    ("What is the phone number?", "Call me on 555-0142 if nobody opens the door."),
    ("Which day of the week is named?", "The plumber can only come on Thursday, so send it early."),
    ("Which country is named in the text?", "Do you also ship plant pots to Ireland?"),
)

REWRITE_TASKS = (
    ("Make this sentence more polite.", "Send me the invoice now."),
    ("Make this sentence more polite.", "You made a mistake with my order."),
    ("Make this sentence more polite.", "Stop sending me emails."),
    ("Make this sentence more polite.", "I want my money back."),
    (
        "Make this sentence shorter.",
        "Due to the fact that it was raining very hard, we decided that we would stay at home.",
    ),
    (
        "Make this sentence shorter.",
        "The thing that I like the most about this knife is the fact that it stays sharp.",
    ),
    (
        "Make this sentence shorter.",
        "We are writing to you in order to let you know that your parcel is on its way to you.",
    ),
    (
        "Make this sentence shorter.",
        "At this point in time we do not have any more of the small plates in our stock.",
    ),
    ("Put this sentence into the past tense.", "She waters the tomatoes every evening."),
    ("Put this sentence into the past tense.", "The shop opens at nine and closes at six."),
    ("Put this sentence into the past tense.", "I pack the box and send it to you."),
    ("Put this sentence into the past tense.", "They sell fresh herbs at the market."),
    ("Turn this statement into a question.", "The lamp comes with a spare bulb."),
    ("Turn this statement into a question.", "You can repair the drawer."),
    ("Correct the spelling of this sentence.", "The tabel arived with two broken legs."),
    ("Correct the spelling of this sentence.", "I recieved the wrong colour of napkins yesterday."),
)

QUESTIONS = (
    "What is the capital of France?",
    "How many days are there in a week?",
    "Which planet do we live on?",
    "What do bees make?",
    "What is the opposite of hot?",
    "Which season comes after winter?",
    "What is 2 + 3?",
    "At what temperature in degrees Celsius does water boil?",
    "Name one herb that is often used on pizza.",
    "What is the colour of the sky on a clear day?",
    "Which meal do people eat in the morning?",
    "What is the largest ocean on Earth?",
    "How many months does a year have?",
    "Which animal gives us wool?",
    "What do people use to cut paper?",
    "What do plants need from the sun?",
)

COMPLETION_PROMPTS = (
    "A simple recipe for tomato soup starts with",
    "The three primary colours are red,",
    "Dear customer, thank you for your order. We are happy to tell you that",
    "Once upon a time, a gardener found a silver key under the old apple tree.",
    "To keep a kitchen knife sharp, you should",
    "Monday, Tuesday, Wednesday,",
)

REVIEWS = (
    ("Kettle", 5, "Boils fast, pours cleanly and never drips. Worth every cent."),
    ("Kettle", 2, "It works, but the whistle is so loud that the dog hides under the sofa."),
    ("Kettle", 4, "Nice and light. I only wish the lid opened wider for cleaning."),
    ("Kettle", 1, "Rust at the bottom after two weeks. I have gone back to my old one."),
    ("Kettle", 5, "A present for my father, who now makes tea for the whole street."),
    ("Bread knife", 5, "Cuts a fresh loaf without a crumb. The handle fits my hand well."),
    ("Bread knife", 3, "Sharp enough, but the balance is odd and it slips when wet."),
    ("Bread knife", 4, "Good steel for the price. Do not put it in the dishwasher."),
    ("Bread knife", 1, "The blade bent on a hard crust. I expected more."),
    ("Bread knife", 5, "Ten years with the old model, and the new one is even better."),
    ("Cast iron pan", 5, "Heavy, honest and perfect for steaks. Season it twice before use."),
    ("Cast iron pan", 2, "Far too heavy for me, and eggs stick whatever I do."),
    ("Cast iron pan", 4, "Heats evenly on my small stove. The handle gets very hot."),
    ("Cast iron pan", 3, "A fine pan, but it came with a scratch on the rim."),
    ("Cast iron pan", 1, "Cracked in the oven during the second use. Quite a bang."),
    ("Mixer", 4, "Kneads pizza dough without trouble. A little noisy at full speed."),
    ("Mixer", 1, "Smoke came out of it while I was whipping cream. Sent it back."),
    ("Mixer", 5, "My cakes have never been so light. Easy to clean as well."),
    ("Mixer", 2, "The bowl wobbles and the buttons feel cheap."),
    ("Mixer", 3, "Does the job, but takes up half of the counter."),
    ("Garden spade", 5, "Goes through clay like butter. The best tool in my shed."),
    ("Garden spade", 4, "Strong and light. The paint wears off quickly, which I do not mind."),
    ("Garden spade", 1, "The handle snapped on the first stone. Dangerous!"),
    ("Garden spade", 3, "Good for small people; for me the handle is too short."),
    ("Garden spade", 5, "Bought one for myself and then two more for the allotment club."),
    ("Watering can", 2, "Pretty to look at, but half of the water runs down the spout."),
    ("Watering can", 5, "Holds plenty and pours a soft rain. My seedlings are grateful."),
    ("Watering can", 4, "Good balance even when full. The rose clogs now and then."),
    ("Watering can", 1, "Arrived dented and leaking. The replacement leaks too."),
    ("Watering can", 3, "It is fine. Nothing more, nothing less."),
    ("Rose gloves", 5, "Thorns do not stand a chance. Soft inside, and they wash well."),
    ("Rose gloves", 2, "The size chart is wrong: large is more like small."),
    ("Rose gloves", 4, "Long cuffs protect my arms. A bit warm in summer."),
    ("Rose gloves", 1, "A seam opened on the first day, right at the thumb."),
    ("Rose gloves", 5, "I forgot them in the rain for a week, and they are like new."),
    ("Kitchen scale", 1, "Shows a different weight every time. My bread came out like stone."),
    ("Kitchen scale", 5, "Accurate to the gram and thin enough for the drawer."),
    ("Kitchen scale", 4, "Clear display, quick to respond. Switches itself off a bit too soon."),
    ("Kitchen scale", 3, "Works well, but eats batteries."),
    ("Kitchen scale", 2, "The glass top scratches if you so much as look at it."),
    ("Tea set", 5, "Thin porcelain with a lovely blue glaze. Guests always ask about it."),
    ("Tea set", 3, "Beautiful cups, but the pot is too small for four people."),
    ("Tea set", 1, "Three of six cups were broken on arrival, packed in a single sheet of paper."),
    ("Tea set", 4, "Elegant and light. The gold rim means no microwave."),
    ("Tea set", 5, "My grandmother had one like it. Sunday afternoons are back."),
    ("Garden bench", 4, "Solid wood and easy to put together in an hour. One screw was missing."),
    ("Garden bench", 2, "After one winter the boards are grey and one of them is split."),
    ("Garden bench", 5, "We sit on it every evening now. Comfortable without cushions."),
    ("Garden bench", 1, "The holes did not line up, and support told me to drill my own."),
    ("Garden bench", 3, "Looks good from afar. Up close the finish is rough."),
    ("Herb scissors", 5, "Chives in seconds! I did not know that I needed five blades."),
    ("Herb scissors", 2, "Impossible to clean between the blades."),
    ("Herb scissors", 4, "Quick and tidy. Keep the comb that comes with them."),
    ("Herb scissors", 1, "They tear basil instead of cutting it."),
    ("Herb scissors", 3, "A nice gadget that lives at the back of my drawer."),
    ("Apron", 5, "Thick cotton, deep pockets, and the colour stayed after many washes."),
    ("Apron", 4, "Good length for tall cooks. The neck strap could be softer."),
    ("Apron", 1, "The dye came off on my white shirt. Very disappointed."),
    ("Apron", 3, "Does what an apron does. The ties are rather short."),
    ("Apron", 5, "My son uses it as a cape and for baking. It has survived both."),
)
