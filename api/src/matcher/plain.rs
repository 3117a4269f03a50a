//! Regular expressions that are no more than texts with `.*` between them.

/// Alternatives, each of texts in order; between them anything but the end of a line.
#[derive(Clone, Debug)]
pub(super) struct Plain(Box<[Box<[Box<str>]>]>);

impl Plain {
    /// `None`: it takes more than this to match the expression, or it is none.
    pub(super) fn read(pattern: &str) -> Option<Self> {
        let (mut all, mut texts, mut text) = (Vec::new(), Vec::new(), String::new());
        let mut chars = pattern.chars();
        while let Some(next) = chars.next() {
            match next {
                '|' => {
                    texts.push(std::mem::take(&mut text).into());
                    all.push(std::mem::take(&mut texts).into());
                }
                '.' if chars.next() == Some('*') => texts.push(std::mem::take(&mut text).into()),
                '\\' => text.push(chars.next().filter(|c| r"\.+*?()|[]{}^$#&-~/".contains(*c))?),
                '.' | '+' | '*' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '^' | '$' | '\n' => {
                    return None;
                }
                _ => text.push(next),
            }
        }
        texts.push(text.into());
        all.push(texts.into());
        Some(Self(all.into()))
    }

    pub(super) fn matches(&self, value: &[u8]) -> bool {
        self.0.iter().any(|texts| matches(texts, value))
    }
}

fn matches(texts: &[Box<str>], value: &[u8]) -> bool {
    let Some((first, rest)) = texts.split_first() else { return false };
    let Some(value) = value.strip_prefix(first.as_bytes()) else { return false };
    let Some((last, between)) = rest.split_last() else { return value.is_empty() };
    let Ok(mut value) = std::str::from_utf8(value) else { return false };
    for text in between {
        let Some(at) = value.find(&**text) else { return false };
        if value[..at].contains('\n') {
            return false;
        }
        value = &value[at + text.len()..];
    }
    value.strip_suffix(&**last).is_some_and(|value| !value.contains('\n'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex::Regex;

    use super::*;

    #[test]
    fn reads_what_people_write_most() {
        for pattern in ["GET|POST", r"/shop\.v1\.Orders/.*", ".*", "", r"a\-b|.*-c.*d", "x y#"] {
            assert!(Plain::read(pattern).is_some(), "{pattern}");
        }
        for pattern in [".", ".+", ".*?", "a*", "(a)", "[a]", r"\d", r"a\", "^a", "a$", "(?i)a"] {
            assert!(Plain::read(pattern).is_none(), "{pattern}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn means_what_the_expression_means(
            pattern in r"(a|b|é|\.\*|\.|\*|\||\\|\\\.|\\\||-|#|\?){0,10}",
            value in prop::collection::vec(
                prop::sample::select(&[b'a', b'b', 0xc3, 0xa9, b'.', b'-', b'\n', b'|'][..]), 0..8
            ),
        ) {
            if let Some(plain) = Plain::read(&pattern) {
                let regex = Regex::new(&format!(r"\A(?:{pattern})\z"));
                let regex = regex.map_err(|error| TestCaseError::fail(error.to_string()))?;
                let wanted = std::str::from_utf8(&value).is_ok_and(|value| regex.is_match(value));
                prop_assert_eq!(plain.matches(&value), wanted, "{:?} {:?}", pattern, value);
            }
        }
    }
}
