//! Keys in text, and text that only looks like keys.

use decurion_config::{Redactor, Secret};
use proptest::prelude::*;

fn redactor() -> Redactor {
    Redactor::new([], true)
}

/// The redacted text, and whether the key in the middle is gone whole.
const KEYS: &[&str] = &[
    "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUvWxYz0123456789-_AbCdEfGh-AAAA",
    "sk-ant-admin01-abcdefgh12345678",
    "sk-ant-oat01-abcdefgh",
    "sk-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKL",
    "sk-proj-abc_DEF-123456789012345678901234567890",
    "sk-svcacct-0123456789abcdefghij",
    "sk-or-v1-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "gho_0123456789abcdefghijABCDEFGHIJ012345",
    "ghu_0123456789abcdefghijABCDEFGHIJ012345",
    "ghs_0123456789abcdefghijABCDEFGHIJ012345",
    "github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz0123456789",
    "AKIAIOSFODNN7EXAMPLE",
    "ASIAIOSFODNN7EXAMPLE",
    "xoxb-123456789012-1234567890123-AbCdEfGhIjKlMnOpQrStUvWx",
    "xoxp-1234567890-abcdefghij",
    "AIzaSyA0123456789abcdefghijklmnopqrstuv",
    "glpat-abcdefghij0123456789",
    "npm_0123456789abcdefghijABCDEFGHIJ012345",
    "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH",
    "sk_live_0123456789abcdefghijABCD",
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
];

#[test]
fn known_shapes_are_cut_out_wherever_they_stand() {
    let redactor = redactor();
    for key in KEYS {
        for (before, after) in [
            ("", ""),
            ("key: ", ""),
            ("KEY=", "\n"),
            ("\"", "\","),
            ("(", ")"),
            ("Bearer ", " and more"),
            ("é", "é"),
            ("https://x/?k=", "&b=1"),
            ("a_", " "),
            ("\\\"", "\\\""),
        ] {
            let text = format!("{before}{key}{after}");
            let redacted = redactor.redact(&text);
            assert_eq!(redacted, format!("{before}[redacted]{after}"), "{text}");
        }
    }
}

#[test]
fn ordinary_text_is_left_alone() {
    let redactor = redactor();
    for text in [
        "",
        "a",
        "The quick brown fox jumps over the lazy dog, and a_very_long_identifier_name_that_goes_on_and_on.",
        "0530961f3b6e3c0a2f1b4d5e6f708192a3b4c5d6",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "123e4567-e89b-12d3-a456-426614174000",
        "toolu_01AbCdEfGhIjKlMnOpQrStUv msg_01XFDUDYJgAACzvnptvVoYEL req_011CSHoEeqs5C35K2UUqR7Fy",
        "sk-learn-contrib-imbalanced-learning-toolkit",
        "task-force-of-some-very-long-name-0123456789012345",
        "disk-usage-0123456789012345678901234567890",
        "import sklearn; from sk-build import x",
        "sk-short1",
        "ghp_short",
        "ghp_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa_is_not_one"
            .trim_end_matches("_is_not_one")
            .trim_end_matches('a'),
        "AKIA is how it begins; AKIAIOSFODNN7EXAMPLEX is too long and AKIAIOSFODNN7EXAMPL too short",
        "AIzaShort",
        "xoxb-words-without-digits-here",
        "npm_config_registry_and_other_long_names_here",
        "hf_transfer_and_other_long_names",
        "eyJhbGciOiJIUzI1NiJ9 alone is no token, nor is eyJ.eyJ.x",
        "integrity sha512-ZBkA5GMyVE4pSqCzgSvIFhYcQGyTvGUaHRcyUZ+0NGMcJmI1oSEJPn8NwHYTHYTHYT0FqxLJzRzl2ZGEpVTlBg==",
        "-----BEGIN CERTIFICATE-----\nMIIBszCCARygAwIBAgIE\n-----END CERTIFICATE-----",
        "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkq\n-----END PUBLIC KEY-----",
        "let very_long_function_name_with_many_words = another_very_long_function_name(argument_number_one);",
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
        "risk-assessment-2024-q3-final-version-2-reviewed",
        "/usr/lib/x86_64-linux-gnu/libc.so.6 --some-very-long-option-name=value-123456789012345",
        "日本語のテキスト、長い文章でも何も変わりません。",
    ] {
        let redacted = redactor.redact(text);
        assert!(matches!(redacted, std::borrow::Cow::Borrowed(_)), "{text} → {redacted}");
    }
}

#[test]
fn private_keys_are_cut_out_whole() {
    let redactor = redactor();
    let body = "MIIEpAIBAAKCAQEA7bq+/0\nx8c5JH==\n";
    for kind in [
        "RSA PRIVATE KEY",
        "PRIVATE KEY",
        "EC PRIVATE KEY",
        "OPENSSH PRIVATE KEY",
        "PGP PRIVATE KEY BLOCK",
        "ENCRYPTED PRIVATE KEY",
    ] {
        let key = format!("-----BEGIN {kind}-----\n{body}-----END {kind}-----");
        assert_eq!(redactor.redact(&format!("a {key}\nb")), "a [redacted]\nb");
        let one_line = key.replace('\n', "\\n");
        assert_eq!(redactor.redact(&format!("{{\"k\":\"{one_line}\\n\"}}")), "{\"k\":\"[redacted]\\n\"}");
        let cut = format!("a -----BEGIN {kind}-----\n{body}");
        assert_eq!(redactor.redact(&cut), "a [redacted]");
        let two = format!("{key}\n.\n{key}");
        assert_eq!(redactor.redact(&two), "[redacted]\n.\n[redacted]");
    }
}

#[test]
fn exact_secrets_are_found_without_any_shape() {
    let secrets =
        [Secret::new("correct horse battery"), Secret::new("short"), Secret::new("horse battery staple")];
    let redactor = Redactor::new(&secrets, false);
    assert_eq!(redactor.redact("xcorrect horse batteryx"), "x[redacted]x");
    assert_eq!(redactor.redact("correct horse battery staple"), "[redacted]");
    assert_eq!(redactor.redact("a short word"), "a short word");
    assert_eq!(redactor.redact(KEYS[0]), KEYS[0]);
}

#[test]
fn a_stream_shows_what_it_can_and_never_half_a_key() {
    let secrets = [Secret::new("correct horse battery staple")];
    let redactor = Redactor::new(&secrets, true);
    let pem = "-----BEGIN PRIVATE KEY-----\nMIIE+/0=\nabc\n-----END PRIVATE KEY-----";
    let text = format!("Hello é {} and correct horse battery staple,\n{pem}\n日本 {} end", KEYS[0], KEYS[21]);
    let whole = redactor.redact(&text).into_owned();
    assert_eq!(whole.matches("[redacted]").count(), 4);
    for size in 1..=text.len() {
        assert_eq!(in_pieces(&redactor, &text, std::iter::repeat(size)), whole, "pieces of {size}");
    }
}

/// The text through a stream, in pieces of these sizes and then the rest.
fn in_pieces(redactor: &Redactor, text: &str, sizes: impl IntoIterator<Item = usize>) -> String {
    let mut stream = redactor.stream();
    let (mut shown, mut rest) = (String::new(), text);
    for size in sizes {
        if rest.is_empty() {
            break;
        }
        let cut = rest.ceil_char_boundary(size.min(rest.len()));
        shown.push_str(&stream.push(&rest[..cut]));
        rest = &rest[cut..];
    }
    shown.push_str(&stream.push(rest));
    shown + &stream.finish()
}

/// At once, cut in two anywhere, and in small pieces after any first one.
fn assert_same_in_pieces(redactor: &Redactor, text: &str, expected: &str) {
    assert_eq!(redactor.redact(text), expected, "{text}");
    for first in 0..=text.len() {
        for second in [1, 2, 3, 7, 20, text.len()] {
            let shown = in_pieces(redactor, text, std::iter::once(first).chain(std::iter::repeat(second)));
            assert_eq!(shown, expected, "{text}: {first}, then pieces of {second}");
        }
    }
}

/// Keys that touch, overlap or seem to end too early.
#[test]
fn keys_that_run_into_each_other_are_the_same_in_pieces() {
    let redactor = redactor();
    let web = KEYS[21];
    for (text, expected) in [
        // A closing line that is too long to be one: the body goes on.
        (
            "-----BEGIN eyJaaaaaaaaaaaaPRIVATE KEY----------END ask-ant-0000aaa00a00a0ask-ant-a0aa00a00aaaaa0aaa0a\
             eyJaaaaaaaaaaaa PRIVATE KEY-----PRIVATE KEY-----",
            "[redacted]",
        ),
        // Another kind of block inside of a key without an end.
        ("-----BEGIN PRIVATE KEY-----\nMIIE\n-----BEGIN CERTIFICATE-----\nMIIB\n.", "[redacted]."),
        // The last dashes of a key are the first ones of the next.
        (
            "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----BEGIN PRIVATE KEY-----\nMIIF\n.",
            "[redacted].",
        ),
        // A web token inside of another key, and one that seems to be part of another.
        (&format!("sk-ant-abcdefgh-{web} b"), "[redacted] b"),
        (&format!("eyJaaaaaaaaaaaa.{web} b"), "[redacted] b"),
        (&format!("eyJaaaaaaaaaaa.{web} b"), "[redacted] b"),
        (&format!("eyJaaaaaaaaaa.{web} b"), "eyJaaaaaaaaaa.[redacted] b"),
        // Known not to be a key only by what follows.
        ("AKIAIOSFODNN7EXAMPLE AKIAIOSFODNN7EXAMPLEX", "[redacted] AKIAIOSFODNN7EXAMPLEX"),
        (
            "sk-proj-words-without-any-digit sk-proj-words-with-a-digit-1",
            "sk-proj-words-without-any-digit [redacted]",
        ),
    ] {
        assert_same_in_pieces(&redactor, text, expected);
    }
}

/// Exact secrets that overlap themselves or a key, or are the middle of a word.
#[test]
fn exact_secrets_that_run_into_others_are_the_same_in_pieces() {
    let secrets = [Secret::new("abababab"), Secret::new("sk-ant-0"), Secret::new("word word")];
    let redactor = Redactor::new(&secrets, true);
    for (text, expected) in [
        ("xabababababx", "x[redacted]x"),
        ("xababababababababx", "x[redacted]x"),
        ("ask-ant-0aaaaaaaa", "a[redacted]aaaaaaaa"),
        ("a-sk-ant-0aaaaaaaa", "a-[redacted]"),
        ("abababababsk-ant-abcdefgh", "[redacted]sk-ant-abcdefgh"),
        ("word word word éword word", "[redacted] é[redacted]"),
        // Two that touch are still two.
        ("word wordword word", "[redacted][redacted]"),
    ] {
        assert_same_in_pieces(&redactor, text, expected);
    }
}

/// The place where doubt ends is the same for a text and for its pieces.
#[test]
fn a_flood_is_the_same_in_pieces() {
    const MAX_DOUBT: usize = 64 * 1024;
    let redactor = redactor();
    for by in [MAX_DOUBT - 1, MAX_DOUBT, MAX_DOUBT + 1] {
        let digit = format!("sk-proj-{}1bc", "a".repeat(by - 9));
        let web = format!("eyJ{}.eyJaaaaaaaaaa.{}", "a".repeat(by - 31), "b".repeat(50));
        for key in [digit, web] {
            let text = format!("a {key} b");
            let whole = redactor.redact(&text).into_owned();
            assert_eq!(whole, if by <= MAX_DOUBT { "a [redacted] b" } else { &text }, "{by}");
            for size in [997, 32 * 1024, 65_536] {
                assert!(in_pieces(&redactor, &text, std::iter::repeat(size)) == whole, "{by} in {size}");
            }
            // One byte at a time where it is decided.
            let near = [by - 40].into_iter().chain(std::iter::repeat_n(1, 100));
            assert!(in_pieces(&redactor, &text, near) == whole, "{by} byte by byte");
        }
    }
    // What is known to be a secret is never shown, however long it is.
    for head in ["sk-ant-", "-----BEGIN PRIVATE KEY-----\n"] {
        let text = format!("a {head}{}. b", "a".repeat(3 * MAX_DOUBT));
        assert_eq!(redactor.redact(&text), "a [redacted]. b");
        assert_eq!(in_pieces(&redactor, &text, std::iter::repeat(5000)), "a [redacted]. b");
    }
}

#[test]
fn what_a_stream_holds_is_not_in_its_debug_form() {
    let redactor = redactor();
    let mut stream = redactor.stream();
    assert_eq!(stream.push("a sk-ant-abc"), "a ");
    assert_eq!(format!("{stream:?}"), "RedactedStream { held: 10 }");
}

#[test]
fn a_stream_without_blanks_is_shown_at_last() {
    let redactor = redactor();
    let mut stream = redactor.stream();
    let shown: usize = (0..1000).map(|_| stream.push(&"a".repeat(100)).len()).sum();
    assert!(shown > 80_000, "{shown}");
}

proptest! {
    #[test]
    fn a_key_between_blanks_never_survives(
        before in "[a-zA-Z0-9 _.=-]{0,40}[ =:]",
        after in "[ ,\n][a-zA-Z0-9 _.=-]{0,40}",
        index in 0..KEYS.len(),
    ) {
        let text = format!("{before}{}{after}", KEYS[index]);
        let redacted = redactor().redact(&text).into_owned();
        prop_assert!(!redacted.contains(KEYS[index]), "{}", redacted);
        prop_assert!(redacted.contains("[redacted]"));
    }

    #[test]
    fn no_text_makes_it_panic_and_pieces_give_the_same(
        text in "([a-z0-9é -]|sk-ant-[a-z0-9]{8,20}|-----BEGIN |PRIVATE KEY-----|-----END |eyJ[a-z]{12}|\\.){0,30}",
        cuts in prop::collection::vec(0_usize..40, 0..12),
    ) {
        let redactor = redactor();
        prop_assert_eq!(in_pieces(&redactor, &text, cuts), redactor.redact(&text));
    }

    /// The same with every shape, and with exact secrets that overlap themselves and the shapes.
    #[test]
    fn pieces_of_any_mixture_give_the_same(
        parts in prop::collection::vec(part(), 0..25),
        cuts in prop::collection::vec(0_usize..12, 0..60),
        exact in 0_usize..=4,
        shapes in prop::bool::weighted(0.8),
    ) {
        // None at all for one in five: to wait for an exact secret hides what else is shown too early.
        let redactor = Redactor::new(&overlapping()[..exact], shapes);
        let text = parts.concat();
        prop_assert_eq!(in_pieces(&redactor, &text, cuts), redactor.redact(&text));
    }

    /// Against the plainest way to find them: every byte of every occurrence is gone, and no other.
    #[test]
    fn no_byte_of_an_exact_secret_is_shown(text in "([ab]{1,9}|(ab){2,9}|sk-ant-0|-----E|ND a|é){0,20}") {
        let mut hidden = vec![false; text.len()];
        for secret in overlapping() {
            for start in 0..text.len() {
                if text.as_bytes()[start..].starts_with(secret.expose().as_bytes()) {
                    hidden[start..start + secret.expose().len()].fill(true);
                }
            }
        }
        let plain: String = text.char_indices().filter(|(at, _)| !hidden[*at]).map(|(_, letter)| letter).collect();
        let redacted = Redactor::new(&overlapping(), false).redact(&text).replace("[redacted]", "");
        prop_assert_eq!(redacted, plain);
    }
}

fn overlapping() -> [Secret; 4] {
    ["abababab", "sk-ant-0", "-----END a", "aéaéaéaé"].map(Secret::new)
}

/// A piece of text that is, begins, ends or joins a secret.
fn part() -> impl Strategy<Value = String> {
    let key = (0..KEYS.len(), 0_usize..80, 0_usize..80).prop_map(|(index, from, to)| {
        let key = KEYS[index];
        let (from, to) = (from % key.len(), to % key.len());
        if from < to { key[from..to].to_owned() } else { key.to_owned() }
    });
    let block = prop::sample::select(vec![
        "-----BEGIN ",
        "-----BEGIN PRIVATE KEY-----",
        "PRIVATE KEY-----",
        "PRIVATE KEY BLOCK-----",
        "-----END ",
        "-----BEGIN CERTIFICATE-----\nMIIB",
        "-----END PRIVATE KEY-----",
        "-----",
        "BEGIN ",
        "MIIE+/0=\n",
        "a long line, without any end but full of words, as if it were a label ",
    ]);
    let secret = prop::sample::select(vec!["abababab", "abab", "sk-ant-0", "-----END a", "aéaé", "aéaéaéaé"]);
    prop_oneof![
        2 => key,
        2 => block.prop_map(str::to_owned),
        1 => secret.prop_map(str::to_owned),
        3 => prop::sample::select(vec!["-", "_", ".", " ", "\n", "é", "a", "1", "A", "eyJ"]).prop_map(str::to_owned),
        1 => "[a-zA-Z0-9_.-]{0,80}",
    ]
}
