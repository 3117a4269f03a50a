//! A set of endpoints, by column: per parameter its distinct values, and per value the
//! endpoints that have it. A policy can so look at each value once, however many endpoints
//! share it.
//!
//! ```text
//! 0  u32  version, 1
//! 4  u32  number of endpoints
//! 8  u32  number of columns, sorted by name
//!    column: { u32 length, name, u32 number of values, sorted by bytes }
//!      value: { u32 length, bytes, u32 count, count × u32 endpoint, ascending }
//! ```

use std::collections::BTreeMap;

use crate::{abi, bits, bytes::Reader};

/// Encodes a table of `len` endpoints from (name, value) pairs per endpoint.
pub fn write<'e>(
    endpoints: impl ExactSizeIterator<Item = impl Iterator<Item = (&'e str, &'e [u8])>>,
) -> Vec<u8> {
    let len = endpoints.len();
    let mut columns: BTreeMap<&str, BTreeMap<&[u8], Vec<u32>>> = BTreeMap::new();
    for (i, endpoint) in endpoints.enumerate() {
        for (name, value) in endpoint {
            columns.entry(name).or_default().entry(value).or_default().push(i as u32);
        }
    }
    let mut out = Vec::new();
    let u32 = |out: &mut Vec<u8>, n: usize| out.extend_from_slice(&(n as u32).to_le_bytes());
    u32(&mut out, abi::VERSION as usize);
    u32(&mut out, len);
    u32(&mut out, columns.len());
    for (name, values) in &columns {
        u32(&mut out, name.len());
        out.extend_from_slice(name.as_bytes());
        u32(&mut out, values.len());
        for (value, holders) in values {
            u32(&mut out, value.len());
            out.extend_from_slice(value);
            u32(&mut out, holders.len());
            for &holder in holders {
                u32(&mut out, holder as usize);
            }
        }
    }
    out
}

/// A decoded table.
#[derive(Debug, Default)]
pub struct Table {
    len: usize,
    bytes: Vec<u8>,
    columns: Vec<Column>,
    /// The bit sets of [`Holders::Bits`], one after the other.
    sets: Vec<u64>,
}

#[derive(Debug)]
struct Column {
    name: String,
    values: Vec<Span>,
}

/// Where a value lies in the table's bytes, and its holders.
#[derive(Debug, Clone, Copy)]
struct Span {
    value: (u32, u32),
    holders: Holders,
}

/// The endpoints that have a value.
#[derive(Debug, Clone, Copy)]
enum Holders {
    /// Few: a list in the table's bytes.
    List(u32, u32),
    /// Many: from this word of the table's bit sets on. A set takes at most twice the bytes of
    /// the list and is added word by word.
    Bits(u32),
}

impl Table {
    /// Reads a table; `None` when it is malformed.
    pub fn read(bytes: Vec<u8>) -> Option<Self> {
        let mut reader = Reader::new(&bytes);
        if reader.u32()? != abi::VERSION {
            return None;
        }
        let len = reader.size()?;
        if len > abi::MAX_ENDPOINTS {
            return None;
        }
        let count = reader.size()?;
        let mut columns: Vec<Column> = Vec::new();
        let mut sets: Vec<u64> = Vec::new();
        let words = bits::words(len);
        let mut at = 12usize;
        for _ in 0..count {
            let name_len = reader.size()?;
            let name = reader.text(name_len)?.to_owned();
            at += 8 + name_len;
            if columns.last().is_some_and(|last| last.name >= name) {
                return None;
            }
            let mut values = Vec::new();
            for _ in 0..reader.size()? {
                let value_len = reader.size()?;
                reader.take(value_len)?;
                let holder_count = reader.size()?;
                let holders = reader.take(holder_count.checked_mul(4)?)?;
                if holders_of(holders).any(|h| h >= len) {
                    return None;
                }
                let value = (at + 4, at + 4 + value_len);
                let list = (value.1 + 4, value.1 + 4 + holders.len());
                at = list.1;
                let value = (value.0 as u32, value.1 as u32);
                let holders = if holder_count < words {
                    Holders::List(list.0 as u32, list.1 as u32)
                } else {
                    let start = sets.len();
                    sets.resize(start + words, 0);
                    let set = sets.get_mut(start..).unwrap_or_default();
                    holders_of(holders).for_each(|h| bits::insert(set, h));
                    Holders::Bits(start as u32)
                };
                values.push(Span { value, holders });
            }
            columns.push(Column { name, values });
        }
        if !reader.is_empty() {
            return None;
        }
        Some(Self { len, bytes, columns, sets })
    }

    /// How many endpoints it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn slice(&self, (start, end): (u32, u32)) -> &[u8] {
        self.bytes.get(start as usize..end as usize).unwrap_or_default()
    }

    /// The number of a parameter's column, which [`Self::select_equal`] asks for; `None` when
    /// no endpoint has the parameter.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.binary_search_by(|c| c.name.as_str().cmp(name)).ok()
    }

    fn values(&self, column: Option<usize>) -> &[Span] {
        column.and_then(|at| self.columns.get(at)).map(|c| c.values.as_slice()).unwrap_or_default()
    }

    fn add(&self, holders: Holders, set: &mut [u64]) {
        match holders {
            Holders::List(start, end) => {
                holders_of(self.slice((start, end))).for_each(|h| bits::insert(set, h));
            }
            Holders::Bits(start) => {
                let words = self.sets.get(start as usize..).unwrap_or_default();
                let words = words.iter().take(bits::words(self.len));
                set.iter_mut().zip(words).for_each(|(word, more)| *word |= more);
            }
        }
    }

    /// Adds to `set` the endpoints whose parameter `name` has a value that `hit` accepts.
    /// Looks at each distinct value once.
    pub fn select(&self, name: &str, set: &mut [u64], mut hit: impl FnMut(&[u8]) -> bool) {
        for span in self.values(self.column(name)) {
            if hit(self.slice(span.value)) {
                self.add(span.holders, set);
            }
        }
    }

    /// The distinct values of a parameter, each with the endpoints that have it.
    pub fn each<'t>(
        &'t self,
        name: &str,
    ) -> impl Iterator<Item = (&'t [u8], impl Iterator<Item = usize> + 't)> + 't {
        let spans = self.values(self.column(name)).iter();
        spans.map(|span| (self.slice(span.value), self.members(span.holders)))
    }

    fn members(&self, holders: Holders) -> impl Iterator<Item = usize> + '_ {
        let (list, set) = match holders {
            Holders::List(start, end) => (self.slice((start, end)), [].as_slice()),
            Holders::Bits(start) => {
                let words = self.sets.get(start as usize..).unwrap_or_default();
                let len = bits::words(self.len).min(words.len());
                ([].as_slice(), words.get(..len).unwrap_or_default())
            }
        };
        holders_of(list).chain(bits::indices(set))
    }

    /// Adds to `set` the endpoints whose parameter of this [`Self::column`] is `value`. Does not
    /// grow with the number of distinct values (but by its logarithm).
    pub fn select_equal(&self, column: Option<usize>, set: &mut [u64], value: &[u8]) {
        let values = self.values(column);
        let found = values.binary_search_by(|span| self.slice(span.value).cmp(value));
        if let Some(span) = found.ok().and_then(|i| values.get(i)) {
            self.add(span.holders, set);
        }
    }
}

fn holders_of(bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
    bytes.chunks_exact(4).map(|h| u32::from_le_bytes([h[0], h[1], h[2], h[3]]) as usize)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Pairs = Vec<(&'static str, &'static [u8])>;

    fn table(endpoints: &[Pairs]) -> Table {
        let bytes = write(endpoints.iter().map(|e| e.iter().copied()));
        Table::read(bytes).expect("well-formed")
    }

    #[test]
    fn selects() {
        let table = table(&[
            vec![("region", b"hz"), ("env", b"gray")],
            vec![("region", b"bj")],
            vec![("region", b"hz")],
        ]);
        let mut set = [0];
        table.select("region", &mut set, |v| v.starts_with(b"h"));
        assert_eq!(set, [0b101]);
        let mut set = [0];
        table.select_equal(table.column("region"), &mut set, b"bj");
        table.select_equal(table.column("region"), &mut set, b"none");
        table.select_equal(table.column("none"), &mut set, b"bj");
        assert_eq!(set, [0b010]);
        assert_eq!(table.len(), 3);
    }

    #[test]
    fn few_and_many_holders_are_selected_alike() {
        let kinds: [&[u8]; 3] = [b"most", b"some", b"one"];
        let kind = |i: usize| kinds[usize::from(i % 50 == 7) + usize::from(i == 57)];
        let endpoints: Vec<Pairs> = (0..200).map(|i| vec![("kind", kind(i))]).collect();
        let table = table(&endpoints);
        for name in kinds {
            let mut set = [0; 4];
            table.select_equal(table.column("kind"), &mut set, name);
            let wanted: Vec<usize> = (0..200).filter(|&i| kind(i) == name).collect();
            assert_eq!(bits::indices(&set).collect::<Vec<_>>(), wanted);
            let mut again = [0; 4];
            table.select("kind", &mut again, |v| v == name);
            assert_eq!(again, set);
            let (_, members) = table.each("kind").find(|(v, _)| *v == name).expect("a value");
            assert_eq!(members.collect::<Vec<_>>(), wanted);
        }
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80), flip in 0usize..60, to: u8) {
            Table::read(bytes);
            let endpoints: [Pairs; 2] = [vec![("a", b"x"), ("b", b"y")], vec![("a", b"z")]];
            let mut good = write(endpoints.iter().map(|e| e.iter().copied()));
            let at = flip % good.len();
            good[at] = to;
            if let Some(table) = Table::read(good) {
                table.select("a", &mut [0], |_| true);
                table.select_equal(table.column("a"), &mut [0], b"x");
            }
        }
    }
}
