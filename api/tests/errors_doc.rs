//! `docs/errors.md` explains exactly the codes that there are.

use std::{collections::BTreeMap, path::Path};

use rulecast_api::Code;

/// What the page says of one code.
#[derive(Default)]
struct Entry {
    name: String,
    means: String,
    action: String,
}

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/errors.md");
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Entries in the page's order: `### RC0101: Name`, `- Means: …`, `- Do: …`.
fn entries(page: &str) -> Vec<(String, Entry)> {
    let mut entries: Vec<(String, Entry)> = Vec::new();
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("### ") {
            let (code, name) = heading.split_once(": ").unwrap_or((heading, ""));
            entries.push((code.to_owned(), Entry { name: name.to_owned(), ..Entry::default() }));
        } else if let Some((_, entry)) = entries.last_mut() {
            if let Some(text) = line.strip_prefix("- Means:") {
                entry.means = text.trim().to_owned();
            } else if let Some(text) = line.strip_prefix("- Do:") {
                entry.action = text.trim().to_owned();
            }
        }
    }
    entries
}

#[test]
fn every_code_is_explained_once_and_in_order() {
    let codes: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    let page = page();
    let explained: Vec<String> = entries(&page).into_iter().map(|(code, _)| code).collect();
    assert_eq!(explained, codes, "docs/errors.md (left) and api/src/code.rs (right) differ");
}

#[test]
fn every_explanation_says_what_it_means_and_what_to_do() {
    let page = page();
    let entries: BTreeMap<String, Entry> = entries(&page).into_iter().collect();
    for code in Code::ALL {
        let entry = entries.get(code.as_str()).unwrap_or_else(|| panic!("{code} is not explained"));
        assert_eq!(entry.name, format!("{code:?}"), "{code}: the heading's name");
        for (what, text) in [("Means", &entry.means), ("Do", &entry.action)] {
            assert!(
                text.len() >= 20 && text.ends_with(['.', '?', ')']),
                "{code}: {what}: {text:?}"
            );
        }
    }
}

#[test]
fn codes_named_in_the_text_exist() {
    let page = page();
    for (at, _) in page.match_indices("RC0") {
        let code = page.get(at..at + 6).unwrap_or_default();
        assert!(Code::ALL.iter().any(|known| known.as_str() == code), "{code} is no code");
    }
}

#[test]
fn codes_are_unique_and_sorted() {
    let texts: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    assert!(texts.is_sorted_by(|a, b| a < b), "{texts:?}");
}
