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
}

#[derive(Debug)]
struct Column {
    name: String,
    values: Vec<Span>,
}

/// Where a value and its holders lie in the table's bytes.
#[derive(Debug, Clone, Copy)]
struct Span {
    value: (u32, u32),
    holders: (u32, u32),
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
                values.push(Span {
                    value: (value.0 as u32, value.1 as u32),
                    holders: (list.0 as u32, list.1 as u32),
                });
            }
            columns.push(Column { name, values });
        }
        if !reader.is_empty() {
            return None;
        }
        Some(Self { len, bytes, columns })
    }

    /// How many endpoints it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn slice(&self, (start, end): (u32, u32)) -> &[u8] {
        self.bytes.get(start as usize..end as usize).unwrap_or_default()
    }

    fn column(&self, name: &str) -> Option<&Column> {
        let at = self.columns.binary_search_by(|c| c.name.as_str().cmp(name)).ok()?;
        self.columns.get(at)
    }

    /// Adds to `set` the endpoints whose parameter `name` has a value that `hit` accepts.
    /// Looks at each distinct value once.
    pub fn select(&self, name: &str, set: &mut [u64], mut hit: impl FnMut(&[u8]) -> bool) {
        for span in self.column(name).map(|c| c.values.as_slice()).unwrap_or_default() {
            if hit(self.slice(span.value)) {
                holders_of(self.slice(span.holders)).for_each(|h| bits::insert(set, h));
            }
        }
    }

    /// Adds to `set` the endpoints whose parameter `name` is `value`. Does not grow with the
    /// number of distinct values (but by its logarithm).
    pub fn select_equal(&self, name: &str, set: &mut [u64], value: &[u8]) {
        let Some(column) = self.column(name) else { return };
        let found = column.values.binary_search_by(|span| self.slice(span.value).cmp(value));
        if let Some(span) = found.ok().and_then(|i| column.values.get(i)) {
            holders_of(self.slice(span.holders)).for_each(|h| bits::insert(set, h));
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
        table.select_equal("region", &mut set, b"bj");
        table.select_equal("region", &mut set, b"none");
        table.select_equal("none", &mut set, b"bj");
        assert_eq!(set, [0b010]);
        assert_eq!(table.len(), 3);
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
                table.select_equal("a", &mut [0], b"x");
            }
        }
    }
}
