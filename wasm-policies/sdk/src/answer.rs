//! What a guest answers to a rule or a table that it is given.
//!
//! Accepted: `u16` count, then per attribute `{ u16 slot, u16 length, name }`. The slot
//! 0xffff with the name `draw` declares the draw. Refused: code, field and message, each as
//! `{ u16 length, UTF-8 }`.

use crate::{
    bytes::{Reader, Writer},
    policy::CommitError,
};

/// Writes the attributes that a rule needs; `None` when they do not fit.
pub fn write_accepted<'n>(
    buffer: &mut [u8],
    attributes: impl ExactSizeIterator<Item = (u16, &'n str)>,
) -> Option<usize> {
    let mut writer = Writer::new(buffer);
    writer.u16(u16::try_from(attributes.len()).ok()?);
    for (slot, name) in attributes {
        writer.u16(slot);
        writer.u16(u16::try_from(name.len()).ok()?);
        writer.put(name.as_bytes());
    }
    writer.finish()
}

/// Reads the attributes that a rule needs; `None` when they are malformed.
pub fn read_accepted(bytes: &[u8]) -> Option<Vec<(u16, &str)>> {
    let mut reader = Reader::new(bytes);
    let count = reader.u16()?;
    let mut attributes = Vec::new();
    for _ in 0..count {
        let (slot, len) = (reader.u16()?, reader.u16()?);
        attributes.push((slot, reader.text(usize::from(len))?));
    }
    reader.is_empty().then_some(attributes)
}

/// Writes a refusal, its texts shortened to 4 KiB each; `None` when it does not fit.
pub fn write_refused(buffer: &mut [u8], error: &CommitError) -> Option<usize> {
    let mut writer = Writer::new(buffer);
    for text in [error.code.as_str(), &error.field, &error.message] {
        let text = &text[..text.floor_char_boundary(4096)];
        writer.u16(text.len() as u16);
        writer.put(text.as_bytes());
    }
    writer.finish()
}

/// Reads a refusal; `None` when it is malformed.
pub fn read_refused(bytes: &[u8]) -> Option<CommitError> {
    let mut reader = Reader::new(bytes);
    let mut text = || {
        let len = reader.u16()?;
        Some(reader.text(usize::from(len))?.to_owned())
    };
    let error = CommitError { code: text()?, field: text()?, message: text()? };
    reader.is_empty().then_some(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips() {
        let mut buffer = [0; 64];
        let names = [(0, "method"), (u16::MAX, "draw")];
        let len = write_accepted(&mut buffer, names.into_iter()).expect("fits");
        assert_eq!(read_accepted(&buffer[..len]), Some(names.to_vec()));
        assert_eq!(read_accepted(&buffer[..len - 1]), None);
        let error = CommitError::new("RC0201", "conditions[0]", "no");
        let len = write_refused(&mut buffer, &error).expect("fits");
        assert_eq!(read_refused(&buffer[..len]), Some(error));
        assert_eq!(read_refused(&buffer[..len - 1]), None);
    }
}
