use super::{MatchError, WholeRegex};
use crate::proto::rules::v1::{ValueMatch, value_match::How};

/// Values of an attribute, of which any may be met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values {
    /// Ascending, each with its [hash](Self::hash) behind.
    equal: Vec<(Box<[u8]>, u32)>,
    regexes: Vec<WholeRegex>,
}

impl Values {
    /// Texts alone.
    pub fn texts(texts: impl IntoIterator<Item = String>) -> Self {
        let with_hash = |text: String| {
            let hash = Self::hash(text.as_bytes());
            (text.into_bytes().into_boxed_slice(), hash)
        };
        let mut equal: Vec<_> = texts.into_iter().map(with_hash).collect();
        equal.sort_unstable();
        Self { equal, regexes: Vec::new() }
    }

    /// From their messages; an error comes with the place of the one that is wrong.
    pub fn from_wire(
        values: impl IntoIterator<Item = ValueMatch>,
    ) -> Result<Self, (usize, MatchError)> {
        let (mut texts, mut regexes) = (Vec::new(), Vec::new());
        for (i, value) in values.into_iter().enumerate() {
            match value.how {
                Some(How::Equals(text)) => texts.push(text),
                Some(How::Regex(text)) => {
                    regexes.push(WholeRegex::new(&text).map_err(|error| (i, error))?);
                }
                None => {
                    let message = "compares in a way of a newer version".to_owned();
                    return Err((i, MatchError { message, hint: "write equals or regex".into() }));
                }
            }
        }
        Ok(Self { regexes, ..Self::texts(texts) })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.equal.len() + self.regexes.len()
    }

    /// Whether there are none; no value meets them.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The hashes of all of them: a value whose [hash](Self::hash) is another is none of them.
    /// `None`: regular expressions are among them.
    pub fn hashes(&self) -> Option<impl Iterator<Item = u32>> {
        self.regexes.is_empty().then(|| self.equal.iter().map(|(_, hash)| *hash))
    }

    /// Equal for equal values. By words: an index asks for it with every call.
    pub fn hash(value: &[u8]) -> u32 {
        let fold =
            |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        let (words, rest) = value.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let words = words.iter().chain([&last]).map(|word| u64::from_le_bytes(*word));
        let hash = words.fold(value.len() as u64, fold);
        (hash >> 32) as u32
    }

    /// Whether a value is one of them.
    pub fn meet(&self, value: &[u8]) -> bool {
        let equal = match &*self.equal {
            [] => false,
            [(one, _)] => **one == *value,
            many => many.binary_search_by(|(known, _)| (**known).cmp(value)).is_ok(),
        };
        equal || self.regexes.iter().any(|regex| regex.matches(value))
    }

    /// For people; at most some of them.
    pub fn shown(&self) -> String {
        let equal = self.equal.iter().map(|(text, _)| String::from_utf8_lossy(text).into_owned());
        let regexes = self.regexes.iter().map(|regex| format!("/{}/", regex.as_str()));
        let some: Vec<String> = equal.chain(regexes).take(4).collect();
        let more = self.len() - some.len();
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let text: String = some.join(", ").chars().take(200).collect();
        text + &more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_may_be_met() {
        let how = |how| ValueMatch { how: Some(how) };
        let (equals, regex) =
            (|text: &str| how(How::Equals(text.into())), |text: &str| how(How::Regex(text.into())));
        let values = Values::from_wire([equals("b"), regex("x+"), equals("a")]).expect("valid");
        for (value, met) in [("a", true), ("b", true), ("xx", true), ("ab", false), ("", false)] {
            assert_eq!(values.meet(value.as_bytes()), met, "{value}");
        }
        assert!(!values.meet(b"\xff"));
        assert_eq!(values.shown(), "a, b, /x+/");
        assert_eq!(Values::texts((0..6).map(|n| n.to_string())).shown(), "0, 1, 2, 3 and 2 more");
        assert!(!Values::default().meet(b""));
        let place = |values: Vec<ValueMatch>| Values::from_wire(values).expect_err("refused").0;
        assert_eq!(place(vec![equals("a"), regex("(")]), 1);
        assert_eq!(place(vec![ValueMatch { how: None }]), 0);
    }
}
