"""The language of a text by its function words, else by its script, and those words.

Function words (articles, prepositions, pronouns, particles, auxiliary verbs) are closed classes, and about every second word
of a sentence is one. Only words of which two languages do not have another meaning are decided without the text: `die`
is a German article and an English verb, so it is a function word in a German text alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

ENGLISH = "en"
# The beginning of a text shows its language: some hundred words.
_CHARACTERS_READ_MAX = 600
# A text has a language if at least this number of its words are function words of it, and more than of any other. `per`, `non`
# and `in` are English words too: of another language one word must be of that alone, or have other letters, or there is one more,
# or such words are more than a third of a text.
_WORDS_MIN = 2

_LISTS = {
    ENGLISH: """
a about after again all also am an and any are as at be because been before being below between both but by can could did do
does doing down during each for from further had has have having he her here hers him his how i if in into is it its itself
just me more most my no nor not now of off on once only or other our out over own same she should so some such than that the
their them then there these they this those through to too under until up very was we were what when where which while who
whom why will with within without would you your
""",
    "de": """
aber als also am an auch auf aus bei beim bin bis bist da damit dann das dass daß dein deine dem den denn der deren des
dessen die dies diese diesem diesen dieser dieses doch dort du durch ein eine einem einen einer eines er es etwas euch euer
für gegen habe haben hat hatte hatten hier hinter ich ihm ihn ihnen ihr ihre ihrem ihren ihrer im in indem ins ist ja jede
jedem jeden jeder jedes jedoch falls jene kann kannst kein keine keinem keinen keiner können könnte könnten konnte konnten
man mehr mein meine mich mir mit muss müssen nach nicht nichts noch nun nur ob oder ohne sehr sein seine seinem seinen
seiner seit sich sie sind so solche soll sollte sollten sondern sonst über um und uns unser unsere unter vom von vor wann
war waren warum was wodurch wofür womit worauf worin wozu weder weil weiter welche welchem welchen welcher welches wenn wer
werde werden weshalb wie wieder wieso
will wir wird wirst wo woher wohin wollen wurde wurden würde zu zum zur zwar zwischen
""",
    "fr": """
ai ainsi alors après au aucun aucune aussi autre autres aux avait avant avec avez avoir avons c ce ceci cela celle celles
celui ces cet cette ceux chaque chez combien comme comment d dans de depuis des doit doivent donc dont du elle elles en
encore entre es est et étaient était été être eu eux font il ils j je jusque l la laquelle là le lequel les leur leurs lors
lorsque lui m ma mais me mes moi moins mon n ne ni non nos notre nous on ont ou où par parce pas pendant peu peut peuvent
plus pour pourquoi près qu quand que quel quelle quelles quels qui quoi pu trop s sa sans se sera ses si soit son sont sous
sur t ta tandis te tes toi ton tous tout toute toutes très tu un une vers vos votre vous y à
""",
    "es": """
a al algo algún alguna algunas alguno algunos ante antes así aún aunque cada como con contra debe deben demasiado cual cuál
cuáles cuando cuándo cuánto cuántos cómo de del desde donde dónde dos durante e el él ella ellas ello ellos en entre era
eran es esa esas ese eso esos esta está están estas este esto estos fue fueron ha había han hasta hay la las le les lo los
más me mediante mi mientras mis muy nada ni no nos nosotros o os otra otras otro otros para pero poco por porque pudo puede
pueden que qué quien quién quiénes se sea según ser si sí sido sin sobre son su sus también tan tanto te tiene tienen todo
todos tras tu tus un una uno unos usted ustedes y ya yo
""",
    "it": """
a ad agli ai al alla alle allo anche ancora avere c che chi come con contro cosa così cui d da dagli dai dal dalla dalle
dallo degli dei del dell della delle dello dentro di dopo dove dunque e ed era erano essere fra già gli ha hai hanno ho i il
in io l la le lei li lo loro lui ma me mentre mi mia mie miei mio ne né negli nei nel nell nella nelle nello noi non nostra
nostro o ogni oltre per perché però più poi prima può qual quale quali quando quanto quella quelle quelli quello questa
queste questi questo qui se sei senza si sia siamo siete solo sono sopra sotto stata stati stato su sua sue sugli sui sul
sulla sulle sullo suo suoi tra tu tua tuo tutta tutte tutti tutto un una uno vi voi è
""",
    "pt": """
a ainda algum alguma ante antes ao aos após aquela aquele aquilo as até cada com como contra da das de dela dele deles
depois desde dessa desse desta deste do dos e é ela elas ele eles em entre era eram essa essas esse esses esta está estão
estas este estes eu foi foram há isso isto já lhe mais mas me mediante meu minha muito na nas nem nenhum no nos nós nossa
nosso num numa o onde os ou para pela pelas pelo pelos pode podem por porque qual quais qualquer quando quanto que quem se
sem ser seu seus sob sobre somente sua suas também tanto te tem têm ter tinha toda todas todo todos tu um uma umas uns você
vocês à às não
""",
    "nl": """
aan al alle als altijd andere ben bij binnen daar dan dat de der deze die dit doch doen door dus een eens en er ge geen haar
had hadden heb hebben heeft hem het hier hij hoe hun iets ik in is ja je jij jou jullie kan kon kunnen maar me meer men met
mij mijn moet moeten na naar niet niets nog nu of om omdat onder ons onze ook op over reeds sinds te tegen toch toen tot
tussen uit uw van veel voor waar waarom wanneer want waren was wat we wel welk welke werd werden wie wij wil wordt worden
zal ze zelf zich zij zijn zo zoals zonder zou
""",
    "pl": """
a aby ale ani bez być bądź był była było były co czy dla do gdy gdzie go i ich im innych ja jak jako jakie je jego jej jest
jeszcze jeśli jeżeli już jednak każdy kiedy kto która które którego której który których lub ma mają mi mnie może można my
na nad nam nas nie nich nim niż o od oraz pod po podczas ponieważ poprzez przed przez przy się są sobie ta tak także tam te
tego tej ten to tu tylko tym u w więc wszystkie właśnie we z za zaś ze że żeby
""",
    "ru": """
а без более больше будет будто будут бы был была были было быть в вам вами вас ваш ваша ваше ваши вместо во вот все всё всего
всей всем всех всю вся вы где да даже дали для до его ее её ей ему если есть еще ещё же за зачем здесь и из или им ими их к каждая
каждое каждый как какая какие какой когда кого ко которая которого которое которой котором которому которую которые который
которых кто куда лишь либо ли между меня мне много может могут можно мой моя мы на над надо нам нами нас наш наша наше наши
не него нее неё ней нельзя нем нём нет ни них ничего но ну о об однако он она они оно от ото откуда перед по под пока после
потом потому почему при про раз с сам сама сами само свой своего своей свои своих себе себя сейчас со собой сколько так
также такая такие такое такой должен должна должно должны очень слишком там те тебя тем то тобой тогда того той только том
тот тоже у уже хотя чего чем через что чтобы чуть эта эти этим этих это этого этой этом этот эту я является являются
""",  # noqa: RUF001 - Russian
    "uk": """
а або адже але без був була були було бути в вам вас ваш вже ви від він вона вони воно все всі де для до є за зі з із його
їй її їм їх й і коли котрий крім ледве лише ми між може можна мій на навіть над нам нас наш не нема немає ні ніж о об однак
ось по під після при про свій своє себе та так також там те ти тим тільки то тобто того той тому тут у хоча хто це цей цим
цих цього ця через чи чому що щоб як яка яке який яких якщо я
""",  # noqa: RUF001 - Ukrainian
    "ro": """
a acea acest această aceste acestea acestei acestor acestui aceștia al ale am ar are asupra atunci au avea aveți avut către că
când care căror cât ce cea cei cel cele cine cu cum da dacă dar de deci decât deja din dintr dintre doar după e ea ei el ele
era erau este eu fi fie fiecare fost fără iar în încă între într îi îl își la le li lor lui mai mult nici niște noi nostru nu o
ori orice pe pentru peste poate pot prin s sa sau se si și spre sub sunt te toate tot toți trebuie tu un una unde unei unele
unor unui va vă vom vor voi
""",
    "sv": """
alla all allt att av blev bli blir både de dem den denna deras dess dessa det detta dig din du då där därför efter eller en er
ett finns för från före genom ha hade han har hela hennes hon honom hos hur här i ingen inget inom inte jag kan kunde man med
mellan men mig min mot måste ni nu när något några någon och också oss på redan samma sedan sig sin sina ska skall skulle som
så till under upp ut utan vad var vara varför varit vi vid vilka vilken vilket än även är över
""",
    "tr": """
ama ancak artık bazı belki ben bir biri biz bu bunu bunun bütün böyle da daha de değil diye en eğer gibi göre hangi hem hep
her hiç ile ise için kadar karşı kendi ki kim mi mu mü ne neden nasıl o olan olarak olduğu on ona onlar onu onun sadece sanki
sen siz sonra tüm var ve veya ya yani yok çok çünkü önce üzere şey şu
""",  # noqa: RUF001 - Turkish
    "el": """
αλλά αν ανά από αυτά αυτές αυτή αυτήν αυτό αυτός αυτού γιατί για δεν δε είναι είχε εάν ένα έναν ένας επίσης έχει έχουν ή ήταν η
θα καθώς κάθε και κατά κι μας με μετά μέσω μη μην μια μία μου μπορεί να οι ο όλα όλες όλοι όπου όπως όταν ότι όχι πιο ποια ποιο
ποιος πολύ πού που πρέπει πριν προς πως πώς σας σε σου στα στη στην στις στο στον στους τα τη την της τι τις το τον του τους
των χωρίς ως ώστε
""",  # noqa: RUF001 - Greek
    "ar": """
إذا إلى إلا أن إن أو أي أيضا أين بدون بعد بعض بين تكون تلك تم ثم حتى حول حيث خلال دون ذلك عبر على عن عند غير في فقط قبل قد كان
كانت كل كما كيف لا لكن لم لماذا لن له لها ليس ما متى مع من منذ نحو هذا هذه هل هم هناك هو هي وهو وهي ولا يتم يجب يكون يمكن التي
الذي الذين
""",
}
# Words of another language that are words of English, of programs or names: function words only in a text of their language.
_OTHER_MEANINGS = frozenset(
    """ale all als also ama ante att ben bez bin bis biz bli care cel cela che ci come comment con contra dal dan dar das dat
    del dell dem den der des die dies din dit dont door dos dove een era est fie font fra gli had har has hat hay hem hep
    her here hier hoe hun iar ich indem ist its jak kan kein kon lei les lub mai man mas med men mes met mia mig min mine
    mis mit mon mot muss nada nam nei nell nie nim non nos num nun over par para pas per peu plus poco pod poi pot pour
    prima quand quanto quell qui redan sans sea sei sen ser seu sia sin sob soll solo son sopra sous stata sub sul sunt
    sur sus tak tam tan tanto tej tem ten ter tes toi ton tot tour tout tra tras tym uma una uno van var vers vid vor vos
    want war was wat weil wel wen wer wie wil will wir you zal""".split()  # noqa: SIM905 prose reads better than 150 quotes
)
FUNCTION_WORDS: Mapping[str, frozenset[str]] = {name: frozenset(words.split()) for name, words in _LISTS.items()}
_LANGUAGES_OF = {
    word: tuple(name for name, words in FUNCTION_WORDS.items() if word in words)
    for word in frozenset().union(*FUNCTION_WORDS.values())
}


_DECIDED = frozenset(
    word
    for name, words in FUNCTION_WORDS.items()
    for word in words - FUNCTION_WORDS[ENGLISH] - _OTHER_MEANINGS
    if name != ENGLISH and (len(word) > 2 or not word.isascii())
)


_NOT_ENGLISH = frozenset(_LANGUAGES_OF) - FUNCTION_WORDS[ENGLISH]


def function_words_in(language: str | None) -> frozenset[str]:
    """Return the function words in a text of a language, or of an unknown one, besides those of English."""
    return _DECIDED if language is None else _FOREIGN_IN[language]


_FOREIGN_IN = {name: _DECIDED | (words if name != ENGLISH else frozenset()) for name, words in FUNCTION_WORDS.items()}


def language_of(words: Iterable[str]) -> str | None:
    """Return the language of a text by its words in lower case (ISO 639-1); None if they do not show it."""
    found: dict[str, int] = {}
    is_decided, count = False, 0
    for word in words:
        count += 1
        is_decided = is_decided or word in _DECIDED or not word.isascii()
        for name in _LANGUAGES_OF.get(word, ()):
            found[name] = found.get(name, 0) + 1
    most = max(found.values(), default=0)
    names = [name for name, times in found.items() if times == most]
    if most < _WORDS_MIN or len(names) > 1:
        return None
    is_much = 3 * most > count and found.get(ENGLISH, 0) < most
    return names[0] if names[0] == ENGLISH or is_decided or most > _WORDS_MIN or is_much else None


# A text with these letters is in this language if its words do not show another. Ukrainian, Serbian and Persian have letters of
# their own, by which a text is in no known language.
_LANGUAGES_OF_SCRIPTS = (
    ("ru", re.compile(r"[\u0430-\u044f\u0451]{2}")),
    ("el", re.compile(r"[\u03ac-\u03ce]{2}")),
    ("ar", re.compile(r"[\u0621-\u064a]{2}")),
    ("hi", re.compile(r"[\u0900-\u094f]{2}")),
    ("hy", re.compile(r"[\u0561-\u0587]{2}")),
    ("ta", re.compile(r"[\u0b82-\u0bcd]{2}")),
)
SCRIPT_LANGUAGES = frozenset(name for name, _ in _LANGUAGES_OF_SCRIPTS)
_OTHER_LETTERS = re.compile(r"[\u0454\u0456\u0457\u0491\u0452\u0458-\u045b\u045f\u067e\u0686\u0698\u06a9\u06af\u06cc]")
_EDGES = ".,;:!?\u00bf\u00a1()[]{}<>\"'`*_\u00ab\u00bb\u201e\u201c\u201d\u2026\u060c\u061b\u061f"
# Languages whose words are reduced to their stems, by the names of PostgreSQL's configurations and of Snowball's
# algorithms. What PostgreSQL knows of them stands in `search_configuration` (migration 0065).
STEMMED: Mapping[str, str] = {
    "ar": "arabic",
    "de": "german",
    "el": "greek",
    "es": "spanish",
    "fr": "french",
    "hi": "hindi",
    "hy": "armenian",
    "it": "italian",
    "nl": "dutch",
    "pt": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "sv": "swedish",
    "ta": "tamil",
    "tr": "turkish",
}


# Languages that write several nouns as one word: Systemdienst, processorkärna.
COMPOUNDING = frozenset({"de", "nl", "sv"})


def script_language(text: str) -> str | None:
    """Return the language that a text in lower case has by its letters alone; None for Latin and unknown ones."""
    if text.isascii() or _OTHER_LETTERS.search(text):
        return None
    return next((name for name, letter in _LANGUAGES_OF_SCRIPTS if letter.search(text)), None)


# As many letters of a word as any name has.
_STEMMED_CHARACTERS_MAX = 64


# The words of texts repeat; this many of them take a few megabytes.
@lru_cache(maxsize=16_384)
def stem_in(word: str, language: str | None = None) -> str | None:
    """Return a word in small letters without its ending, in the language of its script, else in this one; None: it is
    English, or in none of `STEMMED`.
    """
    word = word[:_STEMMED_CHARACTERS_MAX]
    of_script = script_language(word)
    if of_script is None and (language is None or language in SCRIPT_LANGUAGES):
        return None
    import snowballstemmer  # noqa: PLC0415 - thirty languages, which most processes never need

    # The algorithms that PostgreSQL has. A stemmer holds the word that it works on, so each use has its own.
    return str(snowballstemmer.stemmer(STEMMED[of_script or language or ""]).stemWord(word))


def languages_asked(language: str | None) -> list[str]:
    """Return the languages, besides English, in which a question in a language is searched for: that, or all if it shows none."""
    return list(STEMMED) if language is None else [language]


def text_language(text: str) -> str | None:
    """Return the language by which the words of a text are stemmed (`STEMMED`); None: English, or it does not show it."""
    lower = text[:_CHARACTERS_READ_MAX].lower()
    words = [raw if raw.isalpha() else raw.strip(_EDGES) for raw in lower.split()]
    if _NOT_ENGLISH.isdisjoint(words) and lower.isascii():
        return None  # most texts: no other language can have more of their words than English
    language = language_of(words) or script_language(lower)
    return language if language in STEMMED else None
