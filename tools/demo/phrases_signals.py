"""How urgent tickets are: the signals that count, and everything around them in a ticket.

A phrase that starts with '~' is held out (see make_tickets.py). `{a|b}` is a choice, `<slot>` a value.
The policy of this support desk: each signal gives points, the sum decides.
"""

URGENCIES = ("low", "normal", "high", "critical")


def urgency_of(points):
    """0 points: low, 1 or 2: normal, 3 or 4: high, 5 and more: critical."""
    return URGENCIES[0 if points == 0 else 1 if points <= 2 else 2 if points <= 4 else 3]


# kind -> level -> (label in Kev's answer, points, phrases)
SIGNALS = {
    "scope": {
        "one": ("one person", 0, (
            "only I {have|see|get} this{| problem| error}",
            "it is {just|only} me{|, all others are fine|, nobody else}",
            "{nobody|no one} else {is affected|has this{| problem}|sees it}",
            "my colleagues {do not have|never have|do not see} this{| problem}",
            "it concerns {one person|one user|only me|just one of us}{|, me}",
            "for {all my colleagues|everybody else|all others|the others} it is fine",
            "I am the only {one|person|user} who {needs this|has this|is affected}",
            "{just|only} one {user|colleague|employee|person} {is affected|has this|needs it}",
            "all {others|my colleagues|the other users} {are fine|have no problem|are not affected}",
            "{one|a single} {user|person|employee} has this, {nobody else|the others are fine}",
            "this {happens|happened} {to me alone|only to me|to one person}",
            "I am alone with this{| problem}",
            "~only one of us has this problem",
            "~just one person here is affected",
            "~all my colleagues are fine, it is only me",
            "~no other user is affected, I am the only one")),
        "team": ("a team", 1, (
            "{our|my|the} team of <n>{| people} {is affected|has this problem|needs it|waits for it}",
            "<n> {of us|colleagues|people|users|persons} {have this problem|are affected|see this|need it}",
            "it concerns {our|the} {sales|support|design|night|web} team",
            "the {whole |}{support|sales|night|design} team {is affected|waits for this|has this problem}",
            "several {colleagues|of us|users|people} {are affected|have the same problem|see it too}",
            "<n> {colleagues|people} in my {room|team|group} {have the same|are affected}",
            "me and <n> {others|colleagues} {need this|have this|are affected}",
            "{our|a} group of <n> {has this problem|is affected}",
            "some of {us|my colleagues} {have it too|are affected as well}",
            "not only me, <n> {colleagues|others} {too|have it as well}",
            "a {few|handful of} colleagues {are affected|have this|need this too}",
            "{everybody|everyone} in {my|our} {small |}team {is affected|has it}",
            "~<n> users in our sales team see this",
            "~<n> people of our design team have the same problem",
            "~several of us in the support team need this",
            "~not me alone, our team of <n> waits for it")),
        "all": ("everyone", 2, (
            "{everyone|everybody} in {the|our} {company|firm} {is affected|has this problem|sees it}",
            "the {whole|entire} {company|firm} {is affected|waits for this|has this problem}",
            "all {<big> of us|our users|employees|our offices|our customers} {are affected|have this problem|see it}",
            "it concerns {every single user|all users|every employee|the whole company}{| here| we have}",
            "{nobody|no one} in the company is {spared|without this problem}",
            "{every|each} office has {the same problem|this}",
            "all {our customers|offices|users|employees} {see it too|are affected|have the same problem}",
            "there is not one {user|employee} here without this problem",
            "{all|every one} of the <big> {people|employees|users} here {are affected|have it|have this problem}",
            "company wide, {everyone has this|all users are affected|the same for all}",
            "the same {problem|error} {for everyone|for all of us|in every office|for all users}",
            "{everyone|everybody} here {has it|is affected}, {all <big> people|the whole company|every office}",
            "~all <big> employees have this problem",
            "~every user in all our offices is affected",
            "~the same problem for all <big> people of the company",
            "~no office and no user is without this problem"))},
    "block": {
        "free": ("can work", 0, (
            "{we|I} can {work|go on|carry on|live} without it{| for now| meanwhile}",
            "there is {a|another} {workaround|way around it|way}",
            "{we|I} are not blocked{|, {we|I} found another way| at all}",
            "{we|I} {found|have|know} {another way|a workaround|a way around it}{| for now| until then}",
            "{it|this} does not {stop|block|hold up} {us|me|the work|our work}",
            "{meanwhile|until then|for now} {we|I} use {paper|another tool|the old one|something else}",
            "work goes on {as usual|anyway|without it}",
            "{we|I} can {live with it|manage|wait and work}{| for now}",
            "{we|I} {can still work|still work|are able to work|get our work done}",
            "the old {one|tool} still works{| for us| and we use it}",
            "nothing is blocked{|, work goes on}",
            "{we|I} help ourselves with {paper|another tool|a workaround|the old one}",
            "~we are able to go on with another tool",
            "~it does not stop the work, we have the old one",
            "~meanwhile I found a way around it and can go on",
            "~we still get our work done another way")),
        "blocked": ("blocked", 1, (
            "{we|I} cannot {work|go on|carry on|do anything}{| at all| any more| without it}",
            "{we|I} are {completely |}{blocked|stuck}{| until this is done| completely}",
            "there is no {workaround|way around it|other way}",
            "{all|our|the} work {has stopped|stands still|is blocked|does not go on}",
            "without it {we|I} {can do nothing|cannot work|are stuck}",
            "nothing {works|moves|goes on}{| here} {until this is done|without it|any more}",
            "it {stops|blocks|holds up} {us|me|all work|everything}{| completely}",
            "{we|I} {found|know|have} no {other way|way around it|workaround}",
            "work {does not go on|stands still|has stopped}",
            "{we|I} {stand still|are at a full stop|had to stop all work}",
            "no {work is possible|one here can work|other tool can do it}",
            "{we|I} tried {every other way|everything}, {nothing works|there is none|all in vain}",
            "~we are stuck and cannot do any work",
            "~there is no other way and nothing goes on without it",
            "~no workaround, it stops all work",
            "~I am blocked, no way around it"))},
    "time": {
        "far": ("not soon", 0, (
            "there is no {hurry|deadline|rush}{| at all}",
            "{we|I} need it {some time next month|next month|by the end of the year|in a few weeks}",
            "take your time{|, there is no hurry}",
            "next {month|week|year} is {early enough|fine|soon enough}",
            "it can wait {a few weeks|until next month|some weeks|a month}",
            "it does not have to be {today|this week|soon|fast}",
            "any time {this|next} month is {fine|good|early enough}",
            "{a few|some|several} weeks {from now|later} {is fine|is early enough|are okay}",
            "{we|I} {are not in a hurry|can wait|have time}{| until next month| for some weeks}",
            "there is {enough|plenty of|a lot of} time{|, weeks}",
            "{do it|answer} when you have time{|, next month is fine}",
            "no need to {hurry|rush}",
            "~I am not in a hurry, some weeks are fine",
            "~some weeks more do not matter to us",
            "~it does not have to be soon, take a month",
            "~next month would be soon enough for us")),
        "soon": ("due in <d> days", 1, (
            "{we|I} need {it|this} {in|within} <d> days",
            "the deadline is {in <d> days|<d> days from now}",
            "it has to be {done|ready|here} {in|within} <d> days",
            "there are {only |}<d> days left",
            "in <d> days it is too late",
            "{my boss|a customer|our boss|our customer} {wants|needs|expects} it in <d> days",
            "in <d> days {we have a fair|our shop opens|we need it|the meeting is}",
            "{we|I} have {only |}<d> days{| left| for this| until the deadline}",
            "<d> days {from now|and not more}, {then we need it|then it is too late}",
            "please {within|in} <d> days",
            "{our shop opens|the fair starts|the meeting is} in <d> days",
            "~we have to have it in <d> days",
            "~only <d> days are left until we need it",
            "~our customer wants it within <d> days and not later",
            "~within <d> days we have to have it")),
        "now": ("due at once", 2, (
            "{we|I} need {it|this} {today|tomorrow|this evening|within the hour|now|at once}",
            "the deadline is {today|tomorrow|tonight|this evening|in two hours}",
            "it has to be {done|ready|here} {today|by tomorrow|before noon|tonight|by this evening}",
            "there are only {two|three|four|five|a few} hours left",
            "{tomorrow|this evening|in three hours} it is too late",
            "{my boss|a customer|our boss|our customer} {wants|needs|expects} it {today|tomorrow morning|in an hour|"
            "tonight}",
            "we {start|open|present|have a meeting} {today|tomorrow|tomorrow morning|in two hours|tonight}",
            "{we|I} have {only |}{two|three|a few} hours{| left| for this}",
            "{our shop opens|the fair starts|the meeting is} {today|tomorrow|in an hour}",
            "not later than {tomorrow|this evening|noon today|tonight}",
            "it is for {today|tomorrow|tonight}",
            "~it has to be with us by tonight",
            "~until tomorrow noon it has to be here",
            "~only hours are left until we need it",
            "~tomorrow morning our customer needs it")),
        # The days between the two weekdays decide.
        "weekday": ("due in <d> days", None, (
            "today is <today> and {we|I} need it {by|on} <due>",
            "it is <today>, the deadline is {on|this} <due>",
            "I write this on <today>, it has to be done {by|on} <due>",
            "{the fair|our meeting|the event|the deadline} is on <due>, today is <today>",
            "on <due> it is too late, and it is <today> now",
            "{my boss|a customer} wants it {by|on} <due>, today is <today>",
            "it is <today> today, we need it {on|by|not later than} <due>",
            "{we|I} need it {by|on} <due> and {today is|it is already} <today>",
            "~it is <today> and it must be here by <due>",
            "~now it is <today> and on <due> we need it",
            "~our customer needs it on <due>, I write this on <today>",
            "~<due> is the deadline, today is <today>"))},
    "harm": {
        "money": ("loses money", 1, (
            "{we|I} {lose|are losing} {<money>|money|orders|sales}{| every day| each hour| because of it}",
            "it {costs|is costing} us {<money> a day|real money|customers|a lot of money|orders}",
            "customers {leave us|cancel their orders|run away} because of {it|this}",
            "we already lost <n> {orders|customers|sales}{| over this| because of it}",
            "{each|every} {day|hour} {without it |of this |}costs {us |}<money>",
            "we pay <n> people who can do nothing but wait",
            "{money|orders|customers|sales} {are|is} lost {each day|every hour|because of it|with every hour}",
            "{this|it} means a loss of <money>{| a day| each day| for us}",
            "our {customers|buyers} {go to other shops|leave|cancel}",
            "the {damage|loss} is {<money>|big} {already|each day|so far}",
            "~it costs us orders and <money> each day",
            "~orders are lost each day because of it",
            "~every hour we lose customers",
            "~this costs us <money> every day")),
        "security": ("data at risk", 2, (
            "{strangers|other customers|others} {can see|can read|see} {our|my} {data|orders|names|private data}",
            "somebody {logged in|changed things|was in our account} who is not {one of us|me}",
            "I {see|can see|can read} {data|orders|names|mails} of {other customers|strangers|other people}",
            "{we think|I fear} {somebody|a stranger} stole {our passwords|personal data|my data}",
            "{private|personal} data {is|was} {open to anyone|sent to strangers|stolen|open to strangers}",
            "a stranger {used|has|knows} my {login|password}",
            "I found a login from {another country|<city>} that was not {me|us}",
            "{our|the} {passwords|names|private data} {are|were} {stolen|open|sent to strangers|seen by strangers}",
            "somebody {from another country|else|we do not know} {used|uses|has} {our|my} {login|password|account}",
            "{our|my} private {mails|data} {went|were sent} to {other customers|strangers}",
            "{anyone|everybody on the web} can {see|read} {our|my} {personal data|names and mails}",
            "~strangers got names and passwords of ours",
            "~names and passwords are open to strangers",
            "~other customers get mails with my private data",
            "~a stranger from <city> logged in with my password"))},
    "plan": {
        "basic": ("basic plan", 0, (
            "{we|I} {have|are on|use|pay for} the {basic|free} plan",
            "we are a {small|new} customer with the {basic|free} plan",
            "our plan is the {basic|free} one",
            "we are {basic|free} {customers|users}",
            "our contract is {basic|the basic one|the free plan}",
            "as a {customer|user} {of|with} the {basic|free} plan{| I write to you| I ask you}",
            "{basic|free} plan here",
            "~my contract is the basic plan",
            "~the plan we use is the free one",
            "~ours is the basic plan",
            "~we only have the free plan")),
        "gold": ("gold plan", 1, (
            "{we|I} {have|are on|use|pay for} the gold plan",
            "{we are|I am a} gold {customers|customer|users}",
            "our contract is gold{| level| support}",
            "as {a gold customer|gold customers} {I|we} write to you",
            "{we|I} pay for gold{| support}",
            "our plan is {gold|the gold one}",
            "gold {plan|support|contract} here",
            "{we|I} {have|pay for} a {contract with |}gold support{| contract}",
            "~the gold plan is ours",
            "~our company has a contract for the gold plan",
            "~we write to you as gold customers",
            "~our support contract is a gold one"))},
    "tone": {
        "angry": ("angry tone", 0, (
            "{this is|what} a {joke|shame|mess}",
            "I am {really |so |very |}{angry|fed up|mad}{| with you| with this| now}",
            "{this is |}the worst {service|company|support} {ever|of all}",
            "{URGENT|VERY URGENT|urgent}{|, do something|, answer|, read this|, help}",
            "ANSWER ME{| NOW}",
            "I will {tell everybody|write a bad review|never come back}",
            "{how can you be so slow|are you asleep|is anybody there|do you read this}",
            "{I have|we have} had enough{| of you| of this}",
            "shame on you",
            "{never seen|I have never seen} such bad {service|support}",
            "{hello, |}is {anybody|anyone} {there|reading this|awake}",
            "you are {useless|a joke|the worst}",
            "~urgent, urgent, I am fed up",
            "~VERY URGENT, are you reading this",
            "~I am so angry, the worst support ever",
            "~this is a shame, I am really fed up, ANSWER"))},
}

# Takes back the signal named before: what follows holds.
CORRECTIONS = (
    "correction: {S}", "I was wrong{|, sorry|, really}, {S}",
    "forget what I {said|wrote} {about that|above|before}, {S}",
    "update: {S}", "sorry, that was {not right|wrong}: {S}", "I have to {correct myself|take that back}, {S}",
    "no, wait, {S}", "I just {learned|see|hear} that {S}", "{that|what I wrote} {was|is} not {true|right}, {S}",
    "I take that back, {S}", "{sorry, |}my mistake, {S}", "not true any more: {S}", "that has changed, {S}",
    "I {said|wrote} something wrong, {S}", "it turns out that {S}",
    "~I have to correct that, I was wrong: {S}", "~sorry, I have to take that back: {S}",
    "~that was wrong, I just see that {S}", "~update, I was wrong before: {S}")

# Two matters, one of them open. {P} is the open problem, {C} the closed one, {p} and {c} their short names.
TWO_MATTERS = (
    "two {things|matters}. {first|one}, {C}. {second|two}, {P}. the first {one |}is {settled|solved|fine now|done|"
    "closed}",
    "two {things|matters}. {first|one}, {P}. {second|two}, {C}. the second {one |}is {settled|solved|fine now|done|"
    "closed}",
    "two {things|matters}. {first|one}, {C}. {second|two}, {P}. {only the|the} second {one |}is {still open|"
    "not solved}",
    "two {things|matters}. {first|one}, {P}. {second|two}, {C}. {only the|the} first {one |}is {still open|not solved}",
    "{C}. that is {solved|settled|done|fine} {by now|now|already}. but {P}",
    "{C}. {your colleague|somebody|you} {fixed|solved|settled} that {yesterday|last week|already}{|, thanks}. {now|"
    "today} {P}",
    "{P}. this is not about {c}, that is {fine|done|solved|settled}",
    "{P}. by the way, thanks for {your help|helping us} with {c}",
    "last {week|month} {I wrote|we wrote} about {c}, that is {done|closed|solved}. {today|now} {P}",
    "about {c} and {p}: {you can close|please close} {c}, but {p} is still open",
    "about {p} and {c}: {you can close|please close} {c}, but {p} is still open",
    "{C}, but I do not write because of that: {P}",
    "first {C} and then {P}. only the {second|last} {matter|one} is still open",
    "first {P} and then {C}. only the first {matter|one} is still open",
    "my colleague wrote that {C}. {he|she} was wrong, it is {p}: {P}",
    "{I|we} do not need help with {c} any more. {P}",
    "{c} is {settled|solved|done}, {thanks|do not mind it}. {P}",
    "{P}. {c} was another {matter|ticket}, it is {closed|done|solved}",
    "{C}. no, {that is settled|that is done|forget that}. {P}",
    "the first matter: {C}. the other matter: {P}. {please look at|I only need help with} the other",
    "the first matter: {P}. the other matter: {C}. {please look at|I only need help with} the first",
    "~two things: {C}, and {P}. the first is solved",
    "~two things: {P}, and {C}. the second is solved",
    "~two matters. the first: {C}. the other: {P}. please look at the other, the first is done",
    "~two matters. the first: {P}. the other: {C}. please look at the first, the other is done",
    "~{P}. we also had {c}, but your colleague solved that",
    "~you helped us with {c}, thanks, that is fine. today I write because {P}",
    "~{C}, but that is settled. {P}",
)

# Words people use for one another. In training a word becomes another of its line at times, so that a model learns what
# words mean rather than sentences by heart.
SYNONYMS = (
    ("parcel", "package", "box", "delivery", "shipment"), ("broken", "damaged", "crushed", "smashed"),
    ("company", "firm", "business"), ("colleague", "coworker", "teammate"), ("boss", "manager", "chief"),
    ("fix", "repair", "solve", "sort out"), ("send", "mail", "post"), ("wrong", "not right", "false", "incorrect"),
    ("invoice", "bill"), ("slow", "sluggish"), ("crashes", "closes", "dies", "stops"), ("site", "website", "web page"),
    ("program", "app", "software", "tool"), ("report", "list", "table"), ("phone", "mobile", "cell phone"),
    ("reset", "renew", "restore"), ("delete", "remove", "erase"), ("buy", "purchase", "order"),
    ("quote", "offer", "price list"), ("demo", "presentation"), ("bigger", "larger"), ("discount", "better price"),
    ("trial", "test phase"), ("affected", "hit", "touched"), ("problem", "trouble", "issue"), ("need", "want",
    "require"),
    ("please", "kindly"), ("cannot", "are not able to", "are unable to", "can not"), ("lose", "are losing"),
    ("stranger", "unknown person"), ("strangers", "unknown people"), ("stole", "took"), ("today", "this day"),
    ("customers", "clients", "buyers"), ("customer", "client"), ("money", "cash"), ("missing", "not there", "absent"),
    ("refund", "money back"), ("returned", "sent back"), ("arrived", "come", "reached us"), ("late", "delayed",
    "overdue"),
    ("street", "road"), ("address", "place"), ("error", "failure", "fault"), ("update", "new version"),
    ("everyone", "everybody"), ("people", "persons"), ("several", "some", "a few"), ("stuck", "blocked"),
    ("workaround", "way around it"), ("employees", "staff members"), ("entire", "whole"), ("still", "yet"),
    ("email", "mail address"), ("access", "rights", "permission"), ("login", "sign in"), ("fee", "charge"),
    ("reminder", "warning"), ("licences", "seats"), ("print", "print out"), ("empty", "blank"), ("lost", "gone"),
    ("wet", "soaked"), ("held", "stopped", "kept"), ("papers", "documents", "forms"), ("locked", "blocked out",
    "closed"),
    ("fails", "does not work", "breaks off"), ("api", "interface"), ("sync", "synchronise"), ("export", "download"),
    ("import", "upload"), ("tax", "vat"), ("card", "credit card"), ("twice", "two times", "double"),
)

# What may stand before a sentence without changing it.
FILLERS = ("unfortunately", "I think", "as it seems", "you know", "at the moment", "right now", "well", "so",
"actually",
           "to be clear", "to be honest", "really", "in short", "for your information", "also", "and", "please note",
           "just so you know", "it seems", "as I said", "again", "besides", "in fact", "please understand")

# Never lost or changed by rough typing: without them the truth would be another.
KEPT_WORDS = frozenset("""
    no not nobody only just without cannot never nothing else alone none first second other another one two three
    four five few hours hour days day weeks week month year today tomorrow tonight now team whole all every each
    everyone everybody several some gold basic free soon single blocked stuck still closed open solved settled done
    fine but evening noon morning others is are can't cant don't dont isn't doesn't wrong correction update mistake
    """.split())

OPENERS = (
    "hello", "hi", "hi there", "dear support", "good morning", "hello team", "good day", "dear team", "hey",
    "hello, I hope you are well", "hi, <name> here", "good morning, this is <name> from <company>",
    "hello again", "dear sir or madam", "to the support team", "~good evening", "~hi team, it is <name>")

CLOSERS = (
    "thanks", "thank you", "many thanks, <name>", "best, <name>", "regards", "kind regards, <name>", "thanks a lot",
    "bye", "best wishes, <name> at <company>", "waiting for your answer", "<name>", "thank you for your help",
    "~thank you very much, <name>", "~best regards from <company>")

NOISE = (
    "I am a customer since <year>", "our customer number is <order>", "I wrote to you <n> weeks ago",
    "I tried it on my phone and on my laptop", "my colleague <name> knows more", "the weather here is fine",
    "you can call me after lunch", "I looked at your help pages first", "see the picture I added",
    "we moved to <city> in <year>", "I have used <app> for <n> years", "by the way, I like the new colors",
    "sent from my phone", "we are a small company in <city>", "the office is open from nine to five",
    "I am not good with computers", "please answer in simple words", "I could not find a phone number",
    "~I was on holiday until <day>", "~my phone number is on your list", "~<name> in <city> has seen it too")

# Typed in a hurry: what replaces the word on the left.
SHORT_FORMS = {"please": ("pls", "plz"), "you": ("u",), "thanks": ("thx",), "because": ("bc", "cause"), "and": ("&",),
               "are": ("r",), "tomorrow": ("tmrw",), "people": ("ppl",), "cannot": ("cant", "can't", "can not"),
               "does not": ("doesn't", "doesnt"), "do not": ("don't", "dont"), "is not": ("isn't", "isnt")}
