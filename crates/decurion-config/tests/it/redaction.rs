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
        let mut stream = redactor.stream();
        let mut shown = String::new();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let cut = rest.ceil_char_boundary(size.min(rest.len()));
            shown.push_str(&stream.push(&rest[..cut]));
            rest = &rest[cut..];
        }
        shown.push_str(&stream.finish());
        assert_eq!(shown, whole, "pieces of {size}");
    }
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
        let whole = redactor.redact(&text).into_owned();
        let mut stream = redactor.stream();
        let (mut shown, mut rest) = (String::new(), text.as_str());
        for cut in cuts {
            let cut = rest.floor_char_boundary(cut.min(rest.len()));
            shown.push_str(&stream.push(&rest[..cut]));
            rest = &rest[cut..];
        }
        shown.push_str(&stream.push(rest));
        shown.push_str(&stream.finish());
        prop_assert_eq!(shown, whole);
    }
}
