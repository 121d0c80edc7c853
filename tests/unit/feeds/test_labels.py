"""Labels, keywords and representatives of clusters."""
# ruff: noqa: RUF001 - Russian

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from highwater.streams.feeds.clustering import cluster_embeddings
from highwater.streams.feeds.embedding import TextEmbedder
from highwater.streams.feeds.labels import KEYWORDS_MAX, describe_clusters
from highwater.streams.feeds.naming import LABEL_CHARACTERS_MAX, is_mixed
from highwater.streams.feeds.phrases import stems_in
from highwater.streams.feeds.redaction import parts_of
from highwater.streams.languages import FUNCTION_WORDS
from tests.bench.cluster_labels import coverage
from tests.unit.feeds import sample


def describe(groups, ids=None, former=None, keywords_max=KEYWORDS_MAX):
    """Each group of texts is one cluster."""
    texts = [text for group in groups for text in group]
    labels = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    vectors = TextEmbedder().embed(texts)
    ids = ids or [f"id{i:03}" for i in range(len(texts))]
    return describe_clusters(labels, np.ones(len(texts)), vectors, texts, ids, former=former, keywords_max=keywords_max)


def test_a_label_is_a_phrase_that_the_texts_share():
    """Filing prefix, version and pull request number go; the shared run of words stays, as written."""
    (one,) = describe(
        [[f"chore(deps): update dependency typescript-eslint to v8.{i}.0 (#{8000 + i})" for i in range(5)]]
    )
    assert one.label == "Update dependency typescript-eslint"
    assert one.keywords == ("typescript-eslint", "deps")


def test_a_subject_of_one_word_gets_examples():
    """One word says little, so terms from other corners of the cluster follow it, marked as examples."""
    texts = [
        "Commit offsets when the assignor changes",
        "Assignor loses offsets",
        "Rebalance protocol needs offsets",
        "Rebalance protocol documented",
        "Heartbeat of the assignor",
        "Session timeouts",
    ]
    (one,) = describe([texts])
    assert one.label == "Offsets, e.g. assignor, rebalance protocol"


def test_a_part_of_a_hyphenated_word_is_no_keyword():
    """The word is, as a whole; a part that also stands alone is one too."""
    texts = [f"pre-commit {name}" for name in ("hook", "hook", "config", "config")]
    (one,) = describe([texts])
    assert "pre-commit" in one.keywords
    assert "pre" not in one.keywords


def test_a_phrase_of_faint_words_gets_terms_beside_it():
    """That something is updated says little: the label says what."""
    texts = [f"Update dependency {name}" for name in ("eslint", "eslint", "eslint to v9", "vite now", "vite", "react")]
    (one,) = describe([texts])
    assert one.label.startswith("Update dependency")
    assert "eslint" in one.label


@pytest.mark.parametrize(
    ("texts", "keyword"),
    [
        (["KafkaConsumer hangs on close", "Stop the KafkaConsumer", "kafka consumer poll"], "KafkaConsumer"),
        (["Pre-commit autoupdate", "[pre-commit] hooks", "configure pre-commit"], "pre-commit"),
        (["bump @types/node to v20", "use @types/node v18", "types/node is old"], "@types/node"),
        (["topicId is null", "send topic_id", "check topicId"], "topicId"),
        (["offset commit lost", "Offsets lost", "read offsets"], "offsets"),
        (
            ["The rebalance protocol", "New Rebalance protocol, documented", "rebalance protocol v2"],
            "rebalance protocol",
        ),
        (["ACLs of a topic", "list ACLs", "ACL bindings"], "ACLs"),
    ],
)
def test_a_keyword_is_shown_as_the_texts_mostly_write_it(texts, keyword):
    """An identifier is counted by its parts and shown whole; plurals count as one; a pair stands for its words."""
    (one,) = describe([texts])
    assert one.keywords[0] == keyword
    assert sum(part in " ".join(one.keywords).lower() for part in [keyword.lower()]) == 1


def test_a_word_of_one_text_is_no_keyword():
    """Neither are ids, hashes, versions, function words and, beside others, words of manner."""
    texts = ["broker fails 3.4.1 deadbeef12 zebra", "fix the broker again KAFKA-123 yak", "update broker v2 correctly"]
    (one,) = describe([texts])
    assert one.keywords == ("broker",)


def test_faint_words_are_keywords_where_nothing_else_is():
    """A cluster of bare updates still has a label."""
    (one,) = describe([["update", "fix update", "update it"]])
    assert one.keywords == ("update",)


LANGUAGES = {
    "ru": (
        "Для {} нет данных, и {} не отвечает",
        "Не удалось открыть {} из этого раздела",
        "В {} есть ошибка, а {} её не видит",
        "По умолчанию {} не используется",
        "{} для всех",
    ),
    "de": (
        "Die {} konnte nicht gelesen werden",
        "Für die {} gibt es keine Daten, und die {} wartet",
        "Nicht jede {} ist in der {}",
        "{} nicht gefunden",
        "Zu viele {} für einen Server",
    ),
    "es": (
        "No se puede abrir la {} de los datos",
        "Para la {} no hay un valor",
        "La {} y la {} no son de un mismo tema",
        "{} para todos",
        "De la {} no queda nada",
    ),
}
SUBJECTS = {
    "ru": ("таблица", "очередь", "подписка", "реплика", "задача", "страница"),
    "de": ("Tabelle", "Warteschlange", "Partition", "Antwort", "Aufgabe", "Seite"),
    "es": ("tabla", "cola", "partici\u00f3n", "respuesta", "tarea", "p\u00e1gina"),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_label_is_made_of_function_words(language):
    """Each cluster has its subject, also where `Die`, `Для` or `La` is in more texts, and where a title shows no language."""
    groups = [[frame.format(subject, subject) for frame in LANGUAGES[language]] for subject in SUBJECTS[language]]
    described = describe(groups)
    assert len(described) == len(groups)
    for one in described:
        words = set(re.findall(r"[^\W_]+", f"{one.label} {' '.join(one.keywords)}".replace("e.g.", "").lower()))
        assert words.isdisjoint(FUNCTION_WORDS[language]), one.label
        assert words & {subject.lower() for subject in SUBJECTS[language]}, one.label


def test_an_english_word_that_is_grammar_elsewhere_is_a_keyword():
    """In an English window, and in its titles of three words; not in a German one."""
    (english,) = describe([["Pod font", "The pod of the font is lost", "Restart the pod with a font", "Pod of a font"]])
    assert {"pod", "font"} <= set(" ".join(english.keywords).lower().split())
    (german,) = describe([["Die Seite", "Die Seite ist nicht da", "Wo ist die Seite", "Die Seite der Tabelle"]])
    assert "die" not in " ".join((german.label, *german.keywords)).lower().split()


def test_keywords_do_not_repeat_each_other():
    """One form and one containing term is enough."""
    (one,) = describe(
        [["consumer group updater lag", "consumer updates lag", "group updater of updates", "consumer group lag"]]
    )
    words = [word.rstrip("s") for keyword in one.keywords for word in keyword.split()]
    assert len(words) == len(set(words))
    assert sorted(one.keywords) == ["consumer group", "lag", "updater"]


def test_copies_count_by_their_root():
    """Sixteen copies weigh as four texts: what eleven others share stands before what the copies say."""
    others = [
        f"broker {name}"
        for name in ("ash", "elm", "fir", "hazel", "ivy", "jute", "kapok", "larch", "myrtle", "oak", "yew")
    ]
    (one,) = describe([["lockfile"] * 16 + ["lockfile done"] + others])
    assert one.keywords[0] == "broker"


def test_the_commonest_spelling_does_not_depend_on_the_order():
    """Of a word in hundreds of texts a hundred places are counted, the same ones in any order of rows."""
    texts = [f"topicId {number:03}" if number % 2 else f"topic_id {number:03}" for number in range(400)]
    shown = {
        describe([[texts[i] for i in np.random.default_rng(seed).permutation(400)]])[0].keywords for seed in range(5)
    }
    assert len(shown) == 1


def test_members_count_by_their_membership():
    """Words of uncertain members rank behind those of certain ones."""
    texts = ["apple pie", "apple cake", "pear tart", "pear jam"]
    vectors = TextEmbedder().embed(texts)
    for strong, first in (([1.0, 1.0, 0.3, 0.3], "apple"), ([0.3, 0.3, 1.0, 1.0], "pear")):
        (one,) = describe_clusters(np.zeros(4, np.intp), np.array(strong), vectors, texts, list("abcd"))
        assert one.keywords[0] == first


def test_more_keywords_on_request():
    """A measure of coherence takes ten; the first are the same."""
    words = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel"]
    texts = [" and ".join(words), " or ".join(words), " with ".join(words)]
    (served,), (ten,) = describe([texts]), describe([texts], keywords_max=10)
    assert len(served.keywords) == KEYWORDS_MAX
    assert ten.keywords[:KEYWORDS_MAX] == served.keywords
    assert len(ten.keywords) == 8


def test_a_former_label_stays_while_it_is_true():
    """A week's change does not rename a cluster; a change of subject does."""
    before = ["offsets lost", "offsets committed", "consumer offsets", "consumer lag"]
    ids = ["a", "b", "c", "d"]
    old = "Offsets, e.g. lag"
    assert describe([before], ids, former={old: ids})[0].label == old
    assert describe([before], ids)[0].label != old
    assert describe([["docs typo", "docs typos", "docs typo again", "a typo"]], ids, former={old: ids})[0].label != old


def test_of_a_split_cluster_the_larger_part_keeps_the_label():
    """A former label is not shared: it goes where most of its insights went."""
    old = "Consumer, offsets"
    parts = [
        ["consumer offsets lost", "offsets of a consumer", "consumer offsets"],
        ["consumer offsets read", "offsets consumer"],
    ]
    ids = ["a", "b", "c", "d", "e"]
    assert [old == one.label for one in describe(parts, ids, former={old: ids})] == [True, False]
    assert [old == one.label for one in describe(parts, ids)] == [False, False]


def test_real_subjects_read_well():
    """On the bundled sample every label is distinct, short, and made of words of the cluster's own texts; half say it."""
    vectors, texts = sample.vectors(), sample.texts()
    ids = [insight["insight_id"] for insight in sample.insights()]
    found = cluster_embeddings(vectors)
    described = describe_clusters(found.labels, found.memberships, vectors, texts, ids)
    assert len(described) == found.cluster_count >= 10
    labels = [one.label for one in described]
    assert len({label.lower() for label in labels}) == len(labels)
    text_of = dict(zip(ids, texts, strict=True))
    for one in described:
        own = " ".join(text_of[insight] for insight in one.insight_ids).lower()
        assert all(stem in own for part in parts_of(one.label) for stem in stems_in(part))
        assert coverage(one.label, [text_of[insight] for insight in one.insight_ids]) >= (
            0.0 if is_mixed(one.label) else 0.5
        )
        assert len(one.label) <= LABEL_CHARACTERS_MAX + 20
        assert not re.match(r"(?i)\W*(chore|fix|feat|docs|minor|build|ci)\b[^ ]*:", one.label)
        assert 1 <= len(one.keywords) <= KEYWORDS_MAX
        assert not any(keyword.isdigit() for keyword in one.keywords)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_order_of_rows_does_not_matter(seed):
    """Permuting the rows permutes the insight ids of a description, and nothing else."""
    texts, vectors = sample.texts()[-400:], sample.vectors()[-400:]
    ids = [insight["insight_id"] for insight in sample.insights()][-400:]
    found = _found()
    order = np.random.default_rng(seed).permutation(400)
    straight = describe_clusters(found.labels, found.memberships, vectors, texts, ids)
    mixed = describe_clusters(
        found.labels[order],
        found.memberships[order],
        vectors[order],
        [texts[i] for i in order],
        [ids[i] for i in order],
    )
    told = [replace(one, insight_ids=tuple(sorted(one.insight_ids))) for one in (*straight, *mixed)]
    assert told[: len(straight)] == told[len(straight) :]


@cache
def _found():
    return cluster_embeddings(sample.vectors()[-400:])


def test_keywords_tell_clusters_apart():
    """A word that all clusters share ranks below one that is this cluster's own."""
    one, other = describe(
        [["kafka: broker crash", "kafka: broker restart"] * 3, ["kafka: ui login", "kafka: ui logout"] * 3]
    )
    assert {one.keywords[0], other.keywords[0]} == {"broker", "ui"}


def test_the_order_is_by_size_then_representative():
    """The largest comes first; equal sizes are ordered by the representative's id, for any cluster numbers."""
    groups = [["a apple"] * 2, ["b banana"] * 3, ["c cherry"] * 2]
    ids = ["z1", "z2", "m1", "m2", "m3", "a1", "a2"]
    assert [one.representative_id for one in describe(groups, ids)] == ["m1", "a1", "z1"]


def test_the_representative_is_nearest_the_centroid_and_ties_go_by_id():
    """The typical text stands for the cluster, not the odd one; of equal texts the lowest id."""
    (one,) = describe(
        [["consumer group lag", "lag consumer group oddity elsewhere", *["consumer group lag"] * 3]], list("edcba")
    )
    assert one.representative_id == "a"


def test_uncertain_members_pull_the_centroid_less():
    """A member of probability 0 does not move the centre."""
    vectors = np.array([[1, 0], [0.9, 0.1], [-1, 0], [-1, 0], [-1, 0]], np.float32)
    probabilities = np.array([1.0, 1.0, 0, 0, 0])
    described = describe_clusters(np.zeros(5, np.intp), probabilities, vectors, ["x word"] * 5, list("edcba"))
    assert described[0].representative_id in {"d", "e"}


def test_what_a_note_is_filed_under_is_a_subject():
    """The scope of `chore(deps):` is the subject of all texts, `chore` is not; each fruit occurs in one text."""
    (one,) = describe([[f"chore(deps): bump {name}" for name in ("apple", "pear", "plum")]])
    assert one.label == "Deps: bump"


@pytest.mark.parametrize(
    "texts",
    [
        [None, None],
        ["", " "],
        ["!!!", "???"],
        ["12", "3.4"],
        ["a", "the"],
        ["#1", None],
        ["x" * 2**20],
        ["\u6d88\u8d39\u8005\u7ec4 \u091c \u05d0\u05d1"] * 3,
    ],
)
def test_clusters_without_words_still_have_a_label_and_a_keyword(texts):
    """The representative's own characters, else its id, stand in."""
    (one,) = describe([texts])
    assert one.label
    assert one.keywords
    assert all(one.keywords)


def test_namesakes_are_told_apart_by_a_keyword_or_a_number():
    """Two clusters with one label: the smaller adds its own keyword; without one, a number."""
    first, second, third = describe([["lock file maintenance"] * n for n in (9, 7, 5)])
    assert (first.label, second.label, third.label) == (
        "Lock file maintenance",
        "Lock file maintenance (2)",
        "Lock file maintenance (3)",
    )


def test_noise_belongs_to_nothing_and_lengths_must_agree():
    """-1 is left out; only noise gives no description; a missing text is the caller's error."""
    vectors = sample.vectors()[:3]
    noise = np.full(3, -1)
    assert describe_clusters(noise, np.zeros(3), vectors, ["a"] * 3, list("abc")) == []
    assert describe_clusters(noise[:0], np.zeros(0), vectors[:0], [], []) == []
    with pytest.raises(ValueError, match="differ in length"):
        describe_clusters(noise, np.zeros(3), vectors, ["a"] * 2, list("abc"))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.one_of(st.none(), st.text(max_size=30)), min_size=1, max_size=5), min_size=1, max_size=4))
def test_any_texts_are_described_the_same_twice(groups):
    """For any texts: no error, a label and a keyword each, all labels distinct, one outcome."""
    described = describe(groups)
    assert described == describe(groups)
    assert len({one.label.lower() for one in described}) == len(groups)
    assert all(one.label.strip() and one.keywords for one in described)
