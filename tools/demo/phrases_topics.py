"""What tickets are about: thirty topics of five teams, each with the ways people put it.

A phrase that starts with '~' is held out (see make_tickets.py).
`{a|b}` is a choice, `<slot>` a value from SLOTS. Every phrase is a clause without its final full stop.
"""

TEAMS = ("billing", "technical", "shipping", "account", "sales")

# (label, team, how people name the matter, how they describe it, what they ask for)
TOPICS = (
    ("double charge", "billing", ("the double charge", "the payment that was taken twice", "~the second payment"), (
        "I was charged {twice|two times} for {order <order>|my <item>|the same invoice}",
        "you took the money for <item> {twice|two times} {this month|this week|yesterday}",
        "my card shows {the same payment|one payment} two times, <money> each",
        "there are two payments of <money> on my card for one order",
        "<money> was taken twice from our bank account",
        "the same invoice was paid {twice|two times} from our card",
        "we paid once but <money> left our bank account two times",
        "~the bank shows your payment of <money> a second time and we bought only once",
        "~one order, but two payments of <money> on our bank account",
        "~you took <money> once too often",
        "~our card was used for one order and charged two times"), (
        "please give back the second payment",
        "please return the <money> you took too much",
        "please pay back what was charged twice",
        "~please return the second <money> to my card")),
    ("wrong invoice", "billing", ("the wrong invoice", "the mistake on our invoice", "~the amount on the invoice"), (
        "the invoice says <money> but we agreed on <money2>",
        "invoice <order> {has|shows} the wrong {amount|price|company name}",
        "the amount on {our|the last} invoice is {wrong|too high|not what we agreed}",
        "our invoice lists <n> {licences|seats} that we never ordered",
        "there is a mistake on {invoice <order>|my last bill}",
        "you billed us for <item>, which we never bought",
        "the bill for {this month|last month} is <money> higher than it should be",
        "~your bill lists <money2> where our contract says <money>",
        "~on invoice <order> we find a price that nobody agreed to",
        "~you ask <money2> for what should cost <money>",
        "~the last bill has a mistake, <n> licences too many"), (
        "please correct the invoice",
        "please send us a new invoice with the right amount",
        "can you check the amount and fix the bill",
        "~please send a bill with the right price")),
    ("missing refund", "billing", ("the missing refund", "the refund", "~the money I wait for"), (
        "I sent <item> back but the refund has not arrived",
        "my refund of <money> is {still missing|not here yet|late}",
        "you promised a refund and I have not seen any money",
        "the money for my returned <item> never came",
        "I still wait for the <money> you wanted to pay back",
        "the refund for order <order> is not on my card",
        "we cancelled order <order> and never got our money back",
        "~I returned <item> and have not seen the <money> since",
        "~no money came for the order we sent back",
        "~you got <item> back and we have no refund",
        "~where is the refund for <item> that I returned"), (
        "please pay the refund",
        "please tell me when the refund will arrive",
        "I want my refund for order <order>",
        "~please send the money for the returned <item>")),
    ("refused card", "billing", ("the refused card", "the card that is refused", "~the payment with the new card"), (
        "my {credit card|card} is refused when I try to pay",
        "the payment page says my card is {not valid|refused}",
        "we cannot pay the invoice because every card is refused",
        "your payment form does not take our {new|company} card",
        "paying with {bank transfer|card} does not work, the payment is refused each time",
        "each payment {is declined|gets declined}, but the bank says our card is fine",
        "~I try to pay and the form declines my card",
        "~our bank says yes but your payment page refuses the company card",
        "~your page refuses my card although there is money on it",
        "~paying is not possible, the card is declined"), (
        "please tell me how else I can pay",
        "please let me pay by bank transfer",
        "can you accept our new card",
        "~please accept the payment by bank transfer")),
    ("tax details", "billing", ("the tax number", "the tax on the invoice", "~the tax question"), (
        "our tax number is missing on the invoice",
        "you charged tax although we are {tax free|in another country}",
        "the invoice shows the wrong tax {rate|number}",
        "our bookkeeping needs the tax {number|details} on every bill",
        "tax was added to our bill although we gave you our tax number",
        "the tax on invoice <order> is {wrong|too high}",
        "~bill <order> shows tax that a company in another country does not pay",
        "~the tax details on our bill are not right",
        "~why is there tax on the bill of a company that is tax free",
        "~the bill does not show the tax number of our company"), (
        "please add our tax number",
        "please send the invoice again without tax",
        "can you correct the tax on the bill",
        "~please put the right tax number on invoice <order>")),
    ("late fee", "billing", ("the late fee", "the reminder for a paid invoice", "~the fee"), (
        "we got a {reminder|late fee} although the invoice was paid",
        "you added a late fee of <money> to our bill",
        "there is a late fee on invoice <order> that I do not understand",
        "I paid in time and still got a reminder",
        "a fee of <money> was added for paying late, but we paid {last week|on time}",
        "your reminder says invoice <order> is open, but our bank shows it as paid",
        "~the bill was paid on time, yet there is a fee of <money> on it",
        "~you say invoice <order> is late, our bank says we paid",
        "~a late fee for a bill that was paid",
        "~we got a reminder for an invoice that our bank paid last week"), (
        "please remove the fee",
        "please cancel the reminder",
        "can you take the late fee off our bill",
        "~please take back the reminder and the fee")),

    ("app crash", "technical", ("the crash", "the crashes of the app", "~the app that closes"), (
        "the app {crashes|closes} when I open {a file|the calendar|a report}",
        "<app> crashes {every time|each morning|after a few seconds}",
        "after the update <app> {closes by itself|crashes at start}",
        "<app> stops with error <code> and closes",
        "I open {a report|the calendar} and the program closes at once",
        "the program crashes whenever we {print|save|search}",
        "since {yesterday|the update} the app crashes again and again",
        "~each time we save a report the program closes with error <code>",
        "~<app> closes by itself a few seconds after the start",
        "~<app> stops by itself and shows error <code>",
        "~the program closes when I save a file"), (
        "please fix the crash",
        "please tell us how to stop the crashes",
        "can you look at why the app closes",
        "~please look at the error and stop the app from closing")),
    ("slow pages", "technical", ("the slow pages", "the speed of the site", "~the waiting for pages"), (
        "{every page|the site|the dashboard} {is very slow|takes minutes to load}",
        "<app> is so slow that {we wait a minute for each page|nothing moves}",
        "loading {a report|the dashboard} takes {<n> minutes|forever}",
        "search is very slow since {the update|yesterday}",
        "pages load slowly {in the morning|since yesterday|in every browser}",
        "it takes <n> minutes until the list of orders opens",
        "~we wait <n> minutes for the dashboard to open",
        "~the site loads slowly in every browser since the update",
        "~it takes forever to load the list of orders",
        "~in the morning <app> is too slow to use"), (
        "please make it fast again",
        "can you check why the site is slow",
        "please look at the speed of the dashboard",
        "~please check why loading takes so long")),
    ("sync error", "technical", ("the sync error", "the sync", "~the data that does not sync"), (
        "the {calendar|phone|data} does not sync {any more|with <app>}",
        "sync stops with error <code>",
        "changes on my {phone|laptop} do not show up {on the site|in <app>}",
        "the last sync with <app> failed",
        "new orders do not appear in <app> since the sync failed",
        "sync between my phone and <app> is broken",
        "~what I change in the calendar does not show up on my phone",
        "~<app> and my laptop do not sync since yesterday, error <code>",
        "~the phone shows old data because the sync stopped",
        "~since the update nothing syncs with <app>"), (
        "please fix the sync",
        "can you start the sync again",
        "please help us to sync the data",
        "~please look at why the data does not sync")),
    ("failed export", "technical", ("the failed export", "the export", "~the empty file"), (
        "the export to {excel|a file|pdf} {fails|is empty}",
        "I cannot export {the report|my data|our orders}",
        "the export of {the report|last month} stops at <n> percent",
        "importing {a file|our customers} {fails|ends with error <code>}",
        "the file I download from <app> is {empty|broken}",
        "the import of our {orders|customers} stops with error <code>",
        "~I download the report and the pdf is empty",
        "~the file with our orders cannot be imported into <app>",
        "~we want the report as excel but the file is broken",
        "~the export ends at <n> percent with an error"), (
        "please make the export work",
        "can you send us the file or fix the export",
        "please help me to import the file",
        "~please fix the file that we download")),
    ("api error", "technical", ("the api error", "the api", "~the calls to your api"), (
        "your api {answers|returns} error <code>",
        "all our calls to the api {fail|time out}",
        "the webhook {is not sent|stopped working|sends the wrong data}",
        "since {yesterday|the update} the api returns {empty lists|error <code>}",
        "our program gets error <code> from the api on each call",
        "the api key works but every call times out",
        "~calls from our program to your api end with error <code>",
        "~the api times out and the webhook sends empty lists",
        "~the api of <app> answers our calls with error <code>",
        "~your webhook does not reach our program"), (
        "please fix the api",
        "can you check the api on your side",
        "please tell us what error <code> means",
        "~please check why the calls fail on your side")),
    ("broken printing", "technical", ("the printing problem", "the printer", "~the labels that do not print"), (
        "printing {labels|a report|tickets} does not work",
        "the printer prints {empty pages|only half of the page}",
        "<app> does not find {the|our} printer",
        "labels come out of the printer {empty|broken}",
        "when I print {a label|a report} nothing comes out",
        "since the update we cannot print {labels|tickets}",
        "~the printer gives us empty labels since the update",
        "~I want to print a report and <app> does not find any printer",
        "~labels are printed on half of the page only",
        "~nothing is printed when I start the printer from <app>"), (
        "please help us to print",
        "can you fix the printing",
        "please make the printer work with <app>",
        "~please make labels print again")),

    ("late parcel", "shipping", ("the late parcel", "the parcel that was late", "~the delivery that is late"), (
        "my {parcel|package} is {late|<n> days late}",
        "order <order> has not arrived {yet|after <n> weeks}",
        "the parcel should have been here {last week|on <day>}",
        "the delivery of <item> is late",
        "we still wait for {the parcel|the delivery|the box} with <item>",
        "the tracking page {has not changed for <n> days|says it is still on its way}",
        "~<n> days after the promised date there is still no box with <item>",
        "~the tracking page of order <order> has not moved since <day>",
        "~we wait <n> days longer than you promised for <item>",
        "~still no parcel, tracking shows nothing new"), (
        "please tell me where my parcel is",
        "please deliver it soon",
        "when will order <order> arrive",
        "~please tell us when the box will be here")),
    ("wrong address", "shipping", ("the wrong address", "the delivery address", "~the address of the delivery"), (
        "the parcel goes to {the wrong|our old} address",
        "order <order> was sent to {the wrong street|our old office|<city>}",
        "I typed the wrong {street|address|house number} for the delivery",
        "the driver went to the wrong {house|street|address}",
        "our office moved to <city> and the box is sent to the old place",
        "the label on the parcel shows the wrong {street|city}",
        "~the box with <item> is on its way to the street where we lived before",
        "~the delivery of order <order> goes to <city>, but we moved",
        "~you sent <item> to our old house",
        "~the street on the label is not ours, we live in <city>"), (
        "please change the delivery address",
        "please send it to <city> instead",
        "can you tell the driver the right address",
        "~please deliver the box to our new street")),
    ("damaged goods", "shipping", ("the damaged goods", "the broken <item>", "~the damage"), (
        "<item> arrived {broken|damaged|in pieces}",
        "the box was {open|wet|crushed} and <item> is damaged",
        "what came out of the parcel is broken",
        "the parcel arrived but <item> is {broken|scratched}",
        "when I opened the box <item> was in pieces",
        "the driver dropped the box and now <item> is broken",
        "~I opened the parcel and found <item> crushed",
        "~the delivery came wet and the goods are damaged",
        "~<item> was scratched when it came out of the box",
        "~the parcel was wet and all in it is broken"), (
        "please send a new one",
        "please pick up the broken one and send another",
        "can you replace <item>",
        "~please replace what arrived in pieces")),
    ("lost parcel", "shipping", ("the lost parcel", "the parcel that was lost", "~the parcel nobody finds"), (
        "the parcel {is lost|got lost|was never found}",
        "tracking says delivered but {there is no parcel|I got nothing}",
        "the driver says he left the box, but it is not here",
        "nobody knows where the parcel with <item> is",
        "order <order> is marked as delivered but never came",
        "the {post|driver} lost our box with <item>",
        "~the page says delivered, yet nobody here got a box",
        "~no one can find the parcel of order <order>",
        "~the driver cannot say where our parcel is",
        "~tracking says it was delivered and we never got it"), (
        "please find the parcel",
        "please search for the box and send it again",
        "can you ask the driver where he left it",
        "~please find out where the driver left our box")),
    ("customs papers", "shipping", ("the customs papers", "customs", "~the papers for the border"), (
        "the parcel is held {at|by} customs",
        "customs {asks|wants} papers for {order <order>|<item>}",
        "our goods wait at the border because papers are missing",
        "customs in <city> will not let the box go",
        "the delivery stopped at the border, customs wants {a number|an invoice copy}",
        "the customs papers for order <order> are {missing|wrong}",
        "~the box with <item> stands at the border and a paper is missing",
        "~customs will not let order <order> pass",
        "~the border holds our parcel until papers come",
        "~customs wants to know what <item> is and keeps the box"), (
        "please send the customs papers",
        "can you tell customs what is in the box",
        "please help us to get it out of customs",
        "~please send customs the paper for <item>")),
    ("wrong item", "shipping", ("the wrong item", "the item we did not order", "~the wrong content"), (
        "I ordered <item> but got <item2>",
        "there is <item2> in the box {instead of|and not} <item>",
        "you sent the wrong {thing|goods|size}",
        "the parcel holds <item2>, which is not mine",
        "we got somebody else's order in our box",
        "half of order <order> is wrong, we got <item2>",
        "~we opened the box for <item> and found <item2>",
        "~instead of what I ordered the parcel holds <item2>",
        "~we got <item2> but we paid for <item>",
        "~in our parcel is the order of somebody else"), (
        "please send the right one",
        "please pick up <item2> and bring <item>",
        "can you send us what we ordered",
        "~please bring <item> and take <item2> back")),

    ("lost password", "account", ("the lost password", "the password", "~the new password"), (
        "I forgot my password",
        "the {mail|link} to reset my password {never comes|does not work}",
        "my new password is not accepted",
        "I cannot reset the password, the link is {too old|broken}",
        "the password page says my {link|code} is not valid",
        "I lost the password of {my|our} account",
        "~the page does not accept the password I made with your link",
        "~no mail comes when I reset my password",
        "~the link for a new password is broken",
        "~I do not know my password any more and the reset fails"), (
        "please reset my password",
        "please send me a new link for the password",
        "can you set a new password",
        "~please send a mail with a link that works")),
    ("locked account", "account", ("the locked account", "the lock on my account", "~the account that was locked"), (
        "my account is {locked|blocked}",
        "I cannot log in, it says {the account is locked|too many tries}",
        "you locked our account {yesterday|after <n> tries}",
        "the login page says that my account is {closed|blocked}",
        "since {this morning|yesterday} I am locked out",
        "after <n> wrong tries the account of {my colleague|<name>} is locked",
        "~I am out of my account since <n> tries failed",
        "~logging in fails because somebody at your place locked our account",
        "~too many tries, and now my login is blocked",
        "~we cannot log in, the account seems to be locked"), (
        "please unlock my account",
        "please let me log in again",
        "can you open the account of <name>",
        "~please open the locked account again")),
    ("close account", "account", ("closing the account", "the closing of my account", "~deleting the account"), (
        "I {want|wish} to close my account",
        "we do not need {our|the} account any more",
        "I tried to delete my account but there is no button",
        "the account of <name> should be {deleted|closed}",
        "my old account is still there although I asked to {close|delete} it",
        "we leave and all our personal data should be deleted",
        "~there should be no account with my data any more",
        "~the button to delete my old account is missing",
        "~I am leaving, there is no need for my account",
        "~how can I delete my account and my data"), (
        "please close my account",
        "please delete all my data",
        "can you delete the account of <name>",
        "~please delete the old account and its data")),
    ("new email", "account", ("the new email", "the change of my email", "~the old mail address"), (
        "my {email|mail address} has changed",
        "I want to log in with {a new|another} mail address",
        "the account still has my old {email|mail address}",
        "I married and my name and email are different now",
        "I cannot change the mail address in my profile",
        "the email of <name> in our account is wrong",
        "~the mail address in my profile belongs to my old company",
        "~since I married my profile shows the wrong name and mail",
        "~please note that my mail address is another one now",
        "~the profile has my old name, I married"), (
        "please change my email",
        "please use <name>@<company>.example from now on",
        "can you put the new mail address into my profile",
        "~please put my new name and mail into the account")),
    ("user rights", "account", ("the user rights", "the rights of <name>", "~who may see what"), (
        "<name> cannot see {the reports|our projects|the invoices folder}",
        "a new colleague needs {access|a login}",
        "I cannot add {a user|<name>} to our account",
        "my colleague has {no rights|the wrong rights}",
        "<name> left and still has access",
        "we need an admin because <name> left the company",
        "~a colleague who left last week can still see our projects",
        "~<name> is new here and has no login",
        "~<name> has to see the reports but has no access",
        "~take the rights of <name> away, he left the company"), (
        "please give <name> access",
        "please remove <name> from the account",
        "can you make <name> an admin",
        "~please give my colleague the right to see the reports")),
    ("login code", "account", ("the login code", "the code for the login", "~the code on my phone"), (
        "the {login|security} code never arrives",
        "I have a new phone and cannot get the login code",
        "the code on my phone is {not accepted|always wrong}",
        "I lost the phone that I need for the login code",
        "two step login does not work since I changed my number",
        "the sms with the code {does not come|comes too late}",
        "~my old phone is gone and the code still goes to it",
        "~the sms for the login does not reach my new number",
        "~no sms with a code comes to my phone",
        "~the two step login wants a code from a phone I lost"), (
        "please send the code to my new number",
        "please switch off the two step login",
        "can you change the phone for the login code",
        "~please use the new phone for my login")),

    ("price quote", "sales", ("the quote", "the offer", "~the price for <n> seats"), (
        "we want to buy {<n> seats|<big> licences|<item>}",
        "how much {is|are} {<item>|<big> licences|a plan for <n> people}",
        "we compare offers for {a new system|<item>} and are interested in yours",
        "we plan to order {<big>|<n>} {licences|seats} {next month|soon}",
        "our school is looking for a {tool|plan} for <big> people",
        "we would like an offer for <item>",
        "~what would <big> seats for our school cost",
        "~we are looking for offers and think of buying <item>",
        "~we need a price for <big> licences",
        "~please tell us what <item> would cost for our company"), (
        "please send us a quote",
        "please make us an offer for <n> seats",
        "what is the price",
        "~please write us an offer")),
    ("demo request", "sales", ("the demo", "the demo meeting", "~the meeting to see <app>"), (
        "we would like to see <app> {in a demo|before we buy}",
        "my {boss|team} wants a demo of <app>",
        "is there somebody who can show us <app>",
        "we heard of <app> and want to see how it works",
        "I would like a {meeting|call} with someone who can present <app>",
        "before buying we want to see <app> live",
        "~my boss wants to see how <app> works before we buy",
        "~can someone present <app> to our team",
        "~we want someone to show us <app>",
        "~a demo for our team would help us to decide"), (
        "please book a demo for us",
        "when can you show it to us",
        "please call me to plan a demo",
        "~please plan a meeting where you show us <app>")),
    ("more seats", "sales", ("the extra seats", "the upgrade", "~the bigger plan"), (
        "we are growing and need {<n>|<big>} more seats",
        "we want to {move|upgrade} to the {bigger|business} plan",
        "our plan is too small {now|for <n> people}",
        "<n> new people start here and {need seats|our plan has no seats left}",
        "all our seats are used and we want to buy more",
        "we think about the {business|bigger} plan",
        "~our company grows and the plan has too few seats",
        "~<big> people will use <app> here, so we want a bigger plan",
        "~we want more seats because new people start",
        "~our plan is full, <n> people have no seat"), (
        "please add <n> seats to our plan",
        "please upgrade us",
        "how do we get the bigger plan",
        "~please move us to a plan with <big> seats")),
    ("discount", "sales", ("the discount", "a better price", "~the price for schools"), (
        "do you have a discount for {schools|clubs|new customers}",
        "we would buy {<n> seats|<item>} if the price were better",
        "another company offers {the same|<item>} for less",
        "the voucher for new customers, can we use it for <item>",
        "we are a {school|club} and have little money for <item>",
        "is there a better price when we take {<big>|two years}",
        "~a club like ours cannot pay the full price for <item>",
        "~if we take <big> licences, is there a discount",
        "~your price is too high for a small club",
        "~we found <item> for less, can you do better"), (
        "please give us a discount",
        "can you offer a better price",
        "please tell us the price for schools",
        "~please offer a price that a club can pay")),
    ("longer trial", "sales", ("the trial", "the longer trial", "~the test weeks"), (
        "our trial of <app> ends {soon|on <day>} and we need more time",
        "we {test|try} <app> and want {another week|more time} before we buy",
        "the trial is too short to decide",
        "can we test <app> for <n> more {days|weeks}",
        "we want to try <app> first, is there a free trial",
        "the trial ended before {my boss|our team} could see it",
        "~we cannot decide on buying yet, our test of <app> was too short",
        "~is it possible to try <app> free for <n> weeks",
        "~we have tested <app> and need another <n> days",
        "~our test ends on <day>, that is too early"), (
        "please make our trial longer",
        "please start a trial for us",
        "can we have <n> more days to test",
        "~please give us another week to try it")),
    ("product question", "sales", ("the product question", "what the plan can do", "~what <app> can do"), (
        "does <app> {work|come} with {maps|a phone app|<item>}",
        "which plan has {the api|exports|two step login}",
        "can <app> be used in {<city>|a school|two offices}",
        "before we buy: is {support|printing|the api} part of the plan",
        "what is the difference between the {basic|bigger} and the business plan",
        "we are not customers yet and wonder if <app> can {print labels|sync calendars}",
        "~which of your plans would let a school print labels",
        "~we think about buying and ask if <app> works in two offices",
        "~can <app> print labels and sync calendars",
        "~is a phone app part of the basic plan"), (
        "please tell us which plan fits",
        "please send us a list of what is in each plan",
        "what do you recommend",
        "~please tell us what the business plan can do")),
)

SLOTS = {
    "item": ("a lamp", "the blue chair", "two desks", "a printer", "the coffee machine", "a phone", "the headset",
             "three monitors", "a keyboard", "the bike", "a tent", "the office chair", "a camera", "the red bag",
             "two lamps", "a laptop", "the shelf", "a table", "the scanner", "four chairs", "a router", "the jacket",
             "~the grey desk", "~two phones", "~a red lamp", "~the camera bag"),
    "name": ("Ana", "Ben", "Chen", "Dana", "Emil", "Fatima", "Greta", "Hugo", "Ines", "Jon", "Kira", "Leo", "Mina",
             "Nils", "Olga", "Paul", "Rosa", "Sami", "Tina", "Yara", "~Vera", "~Ivo", "~Marta", "~Adem"),
    "app": ("Planner", "the dashboard", "TeamBoard", "the desktop app", "StockView", "the phone app", "the web shop",
            "RouteMap", "the calendar app", "~the planner app", "~the StockView app"),
    "city": ("Lisbon", "Oslo", "Graz", "Lyon", "Leeds", "Turin", "Ghent", "Porto", "Malmo", "Basel", "Cork", "Delft",
             "~Bergen", "~Parma"),
    "company": ("northwind", "bluefish", "oakhill", "sunrise", "redbrick", "harbor", "~greenhill", "~bluebrick"),
    "day": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday"),
}

# Words that point to a topic. People who write in headwords use three or four of them.
HEADWORDS = {
    "double charge": "charged twice|second payment|two payments|paid once|money taken two times|same payment again|"
                     "bank account|card shows it twice|too much taken|bought only once",
    "wrong invoice": "invoice|wrong amount|bill too high|price not agreed|mistake on the bill|never ordered|"
                     "contract price|"
                     "billed|lists|wrong price",
    "missing refund": "refund|money back|sent back|returned|not arrived|cancelled order|promised refund|no money yet|"
                      "waiting "
                      "for money|not seen the money",
    "refused card": "card refused|payment page|declined|cannot pay|bank says yes|not accepted|payment form|"
                    "bank transfer|"
                    "company card|not valid",
    "tax details": "tax|tax number|tax rate|without tax|another country|tax free|bookkeeping|tax on the bill|"
                   "tax details",
    "late fee": "late fee|reminder|paid on time|fee|invoice open|already paid|paid last week|paid in time|marked late",
    "app crash": "crash|crashes|closes by itself|at start|error|program stops|after the update|closes at once|"
                 "when saving|"
                 "when opening",
    "slow pages": "slow|loading|takes minutes|dashboard|pages|waiting|every browser|minutes to open|search slow|speed",
    "sync error": "sync|does not sync|calendar|phone|laptop|changes do not show up|sync failed|sync stopped|"
                  "not the same "
                  "data|not updated",
    "failed export": "export|import|file|empty file|pdf|excel|download|broken file|stops at percent|upload customers",
    "api error": "api|calls|webhook|time out|our program|returns error|empty lists|api key|requests fail",
    "broken printing": "print|printer|labels|empty pages|nothing comes out|half page|printing|not found|paper",
    "late parcel": "parcel late|not arrived|days late|tracking|still on its way|waiting for the box|promised date|"
                   "delivery "
                   "late|not here yet|not moved",
    "wrong address": "wrong address|old address|wrong street|moved|house number|goes to|new street|old office|"
                     "driver went|"
                     "where we lived",
    "damaged goods": "broken|damaged|in pieces|crushed|wet|scratched|opened the box|dropped|damage|goods",
    "lost parcel": "lost|says delivered|no parcel here|never found|nobody knows where|driver left it|got nothing|"
                   "never came|"
                   "cannot find|search",
    "customs papers": "customs|border|papers missing|held|paper|invoice copy|will not let it go|not let pass",
    "wrong item": "wrong item|instead of|ordered|but got|not mine|wrong size|in the box|someone else's order|"
                  "found other "
                  "things|wrong goods",
    "lost password": "password|forgot|reset|link|new password|mail never comes|not accepted|reset mail",
    "locked account": "locked|blocked account|cannot log in|too many tries|locked out|failed tries|open it again|"
                      "logging in",
    "close account": "close account|delete account|no account any more|delete my data|leave|no button|old account|"
                     "personal "
                     "data|closing",
    "new email": "new email|mail address|changed|profile|married|new name|old mail|other mail|wrong email",
    "user rights": "access|rights|cannot see|new colleague|left the company|admin|add user|still has access|no login|"
                   "reports",
    "login code": "login code|sms|new phone|two step|security code|code never arrives|new number|old phone|lost phone",
    "price quote": "quote|offer|how much|buy|licences|cost|price|compare offers|plan to order|interested",
    "demo request": "demo|show us|see it live|before we buy|present|meeting|how it works|call|someone who can present",
    "more seats": "more seats|upgrade|bigger plan|growing|new people|plan too small|business plan|no seats left|"
                  "too few seats",
    "discount": "discount|better price|voucher|less|school|club|little money|two years|too expensive|full price|"
                "cheaper",
    "longer trial": "trial|test|more time|another week|too short|try first|free trial|decide|longer|ended|"
                    "test for weeks",
    "product question": "does it work with|which plan|part of the plan|difference|can it|before we buy|"
                        "not customers yet|used "
                        "in|what can it do|question about plans",
}
