"""The language of a text by its function words, and those words.

Function words (articles, prepositions, pronouns, particles, auxiliary verbs) are closed classes, and about every second word
of a sentence is one. Only words of which two languages do not have another meaning are decided without the text: `die`
is a German article and an English verb, so it is a function word in a German text alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

ENGLISH = "en"
# A text has a language if at least this number of its words are function words of it, and more than of any other.
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
war waren warum was weder weil weiter welche welchem welchen welcher welches wenn wer werde werden weshalb wie wieder wieso
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
a ad agli ai al alla alle allo anche ancora avere c che chi ci come con contro cosa così cui d da dagli dai dal dalla dalle
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
а без более больше будет будто будут бы был была были было быть в вам вами вас ваш ваша ваше ваши вместо во вот все всего
всей всем всех всю вся вы где да даже дали для до его ее её ей ему если есть еще ещё же за зачем и из или им ими их к каждая
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
}
# Words of another language that are words of English, of programs or names: function words only in a text of their language.
_OTHER_MEANINGS = frozenset(
    """als also ante ben bez bin bis cela che come comment con contra dal dan das dat del dell dem den der des die dies dit door
    dos dove een era est font fra gli had has hat hay hem her here hier hoe hun ich indem ist its jak kan kein kon lei les lub
    man mas men mes met mia mine mis mit mon muss nada nam nei nell nie nim non nos num nun over par para pas per peu plus poco
    pod poi pour prima quand quanto quell qui sans sea sei ser seu sia sin sob soll solo son sopra sous stata sul sur sus tak tam
    tan tanto tej tem ten ter tes toi ton tot tour tout tra tras tym uma una uno van vers vor vos want war was wat weil wel wen
    wer wie wil will wir you zal""".split()  # noqa: SIM905 prose reads better than 150 quotes
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


def function_words_in(language: str | None) -> frozenset[str]:
    """Return the function words in a text of a language, or of an unknown one, besides those of English."""
    return _DECIDED if language is None else _FOREIGN_IN[language]


_FOREIGN_IN = {name: _DECIDED | (words if name != ENGLISH else frozenset()) for name, words in FUNCTION_WORDS.items()}


def language_of(words: Iterable[str]) -> str | None:
    """Return the language of a text by its words in lower case (ISO 639-1); None if they do not show it."""
    found: dict[str, int] = {}
    for word in words:
        for name in _LANGUAGES_OF.get(word, ()):
            found[name] = found.get(name, 0) + 1
    most = max(found.values(), default=0)
    names = [name for name, count in found.items() if count == most]
    return names[0] if most >= _WORDS_MIN and len(names) == 1 else None
