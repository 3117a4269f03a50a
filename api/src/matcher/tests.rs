use proptest::prelude::*;

use super::*;

fn regex(pattern: &str) -> StringMatch {
    StringMatch::Regex(Box::new(WholeRegex::new(pattern).expect(pattern)))
}

#[test]
fn each_way_of_matching() {
    use StringMatch::*;
    let text = str::to_owned;
    for (matcher, value, expected) in [
        (Never, Some("a"), false),
        (Never, None, false),
        (Exact(text("a")), Some("a"), true),
        (Exact(text("a")), Some("ab"), false),
        (Exact(text("")), Some(""), true),
        (Exact(text("")), None, false),
        (Prefix(text("gray-")), Some("gray-1"), true),
        (Prefix(text("gray-")), Some("gray"), false),
        (regex("g.*"), Some("gray"), true),
        (regex("g"), Some("gray"), false),
        (regex("a|b"), Some("ab"), false),
        (regex("(?i)GR(a|e)y"), Some("grey"), true),
        (regex(r"\d{2,3}"), Some("1234"), false),
        (regex("ä+"), Some("ää"), true),
        (regex(".*"), None, false),
        (Wildcard(text("*")), Some("x"), true),
        (Wildcard(text("*")), Some(""), true),
        (Wildcard(text("*")), None, false),
        (Wildcard(text("g*")), Some("gray"), false),
        (Wildcard(text("g*")), Some("g*"), true),
        (Empty, Some(""), true),
        (Empty, None, true),
        (Empty, Some("a"), false),
        (NoEmpty, Some("a"), true),
        (NoEmpty, Some(""), false),
        (NoEmpty, None, false),
    ] {
        let found = matcher.matches(value.map(str::as_bytes));
        assert_eq!(found, expected, "{matcher:?} {value:?}");
        let again = StringMatch::from_wire(&matcher.to_wire()).expect("its own message");
        assert_eq!(again, matcher);
        let param = ParamMatch { key: "k".into(), value: matcher };
        assert_eq!(param.matches(value.map(str::as_bytes)), expected && value.is_some());
        assert_eq!(ParamMatch::from_wire(&param.to_wire()).as_ref(), Ok(&param));
    }
    assert!(!regex(".*").matches(Some(b"\xff")));
}

#[test]
fn what_is_no_regular_expression() {
    for pattern in ["(", "a)|(b", "a{2,1}", "(?=a)", r"\p{Nothing}", "(?x) a # comment", r"(a)\1"] {
        let error = WholeRegex::new(pattern).expect_err(pattern);
        assert!(error.message.starts_with("is no regular expression: "), "{}", error.message);
    }
    let large = WholeRegex::new(r"(\w{100}){100}").expect_err("too large");
    assert!(large.message.contains("too large"), "{large}");
    assert!(WholeRegex::new(&"a".repeat(MAX_REGEX + 1)).is_err());
    assert!(WholeRegex::new(r"\w+@\w+\.com").is_ok());
}

#[test]
fn addresses() {
    let cidr = |text| AddressMatch::cidr(text).expect("an expression");
    let wildcard = |text: &str| AddressMatch::Wildcard(text.into());
    let exact = |text: &str| AddressMatch::Exact(text.into());
    for (matcher, address, expected) in [
        (AddressMatch::Never, "1.2.3.4", false),
        (cidr("192.168.1.*:90"), "192.168.1.7:90", true),
        (cidr("192.168.1.*:90"), "192.168.1.7:91", false),
        (cidr("192.168.1.*:90"), "192.168.1.7", false),
        (cidr("192.168.1.0/24"), "192.168.1.7:90", true),
        (cidr("::/8"), "[::1]:90", true),
        (cidr("::/8"), "::1", true),
        (cidr("192.168.1.0/24"), "name:90", false),
        (wildcard("*"), "name", true),
        (wildcard("0.0.0.0"), "name", true),
        (wildcard("192.168.*"), "192.168.1.7", true),
        (wildcard("192.168.*"), "192.169.1.7", false),
        (wildcard("*:90"), "192.168.1.7:90", true),
        (wildcard("1*:90"), "192.168.1.7:90", true),
        (wildcard("name"), "name", true),
        (exact("192.168.1.7"), "192.168.1.7", true),
        (exact("*"), "192.168.1.7", false),
    ] {
        assert_eq!(matcher.matches(address), expected, "{matcher:?} {address}");
        assert_eq!(AddressMatch::from_wire(&matcher.to_wire()), Ok(matcher));
    }
    assert!(AddressMatch::cidr("name").is_err());
}

#[cfg(feature = "manifest")]
mod written {
    use serde_json::{Value, json};

    use super::*;
    use crate::{code::Code, fields::Errors};

    const STRINGS: [&str; 6] = ["exact", "prefix", "regex", "wildcard", "empty", "noempty"];

    fn string(value: Value) -> Result<StringMatch, Vec<(Code, String)>> {
        let mut errors = Errors::default();
        let matcher = StringMatch::read(&value, "m", &mut errors);
        match errors.0.is_empty() {
            true => Ok(matcher),
            false => Err(errors.0.into_iter().map(|e| (e.code, e.path)).collect()),
        }
    }

    #[test]
    fn the_first_in_order_decides() {
        for (i, first) in STRINGS.iter().enumerate() {
            let map: serde_json::Map<String, Value> =
                STRINGS[i..].iter().rev().map(|field| ((*field).to_owned(), json!("a"))).collect();
            let found = string(Value::Object(map)).expect("valid").to_json();
            assert_eq!(found.as_object().expect("a map").keys().collect::<Vec<_>>(), [first]);
        }
        assert_eq!(string(json!({})), Ok(StringMatch::Never));
        assert_eq!(
            string(json!({ "exact": null, "prefix": "a" })),
            Ok(StringMatch::Prefix("a".into()))
        );
    }

    #[test]
    fn mistakes_have_their_places() {
        let invalid = |path: &str| Err(vec![(Code::FieldInvalid, path.to_owned())]);
        assert_eq!(string(json!("a")), invalid("m"));
        assert_eq!(string(json!({ "exact": 1 })), invalid("m.exact"));
        assert_eq!(string(json!({ "exact": "ä".repeat(MAX_TEXT) })), invalid("m.exact"));
        assert!(string(json!({ "exact": "a".repeat(MAX_TEXT) })).is_ok());
        assert_eq!(string(json!({ "exact": "a", "regex": "(" })), invalid("m.regex"));
        let unknown = Err(vec![(Code::FieldUnknown, "m.exakt".to_owned())]);
        assert_eq!(string(json!({ "exakt": "a" })), unknown);
        let mut errors = Errors::default();
        ParamMatch::read_list(Some(&json!([{}, { "key": "" , "value": {} }])), "p", &mut errors);
        AddressMatch::read(&json!({ "cird": "name" }), "a", &mut errors);
        let paths: Vec<&str> = errors.0.iter().map(|e| e.path.as_str()).collect();
        assert_eq!(paths, ["p[0].key", "p[0].value", "p[1].key", "a.cird"]);
    }

    #[test]
    fn both_spellings_of_cidr() {
        for field in ["cidr", "cird"] {
            let mut errors = Errors::default();
            let matcher = AddressMatch::read(&json!({ field: "10.0.0.0/8" }), "a", &mut errors);
            assert!(errors.0.is_empty() && matcher.matches("10.1.2.3"));
            assert_eq!(matcher.to_json(), json!({ "cidr": "10.0.0.0/8" }));
        }
    }

    proptest! {
        #[test]
        fn written_and_read(field in prop::sample::select(STRINGS.to_vec()), text in "[a-z*.]{0,6}", value in prop::option::of("[a-z*]{0,6}")) {
            let Ok(matcher) = string(json!({ field: text })) else { return Ok(()) };
            let again = string(matcher.to_json()).expect("what was written");
            prop_assert_eq!(&again, &matcher);
            let value = value.as_deref().map(str::as_bytes);
            prop_assert_eq!(again.matches(value), matcher.matches(value));
        }
    }
}

proptest! {
    #[test]
    fn anything_is_read(pattern in r"[a-c.*+?|()\[\]{}\\d0-9-]{0,20}|\PC{0,20}", value in prop::collection::vec(any::<u8>(), 0..20)) {
        if let Ok(regex) = WholeRegex::new(&pattern) {
            regex.matches(&value);
        }
        glob(&pattern, &value);
    }

    /// A text is matched by its own pattern, and by nothing longer.
    #[test]
    fn the_whole_value_is_matched(text in "[a-z]{1,8}", more in "[a-z]{1,3}") {
        let regex = WholeRegex::new(&text).expect("letters");
        prop_assert!(regex.matches(text.as_bytes()));
        let longer = [text.as_str(), more.as_str()].concat();
        prop_assert!(!regex.matches(longer.as_bytes()));
    }
}
