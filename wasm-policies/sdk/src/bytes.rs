//! Reading and writing without panics.

/// A cursor over bytes; every read may fail.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(head)
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    #[inline]
    pub(crate) fn size(&mut self) -> Option<usize> {
        usize::try_from(self.u32()?).ok()
    }

    pub(crate) fn text(&mut self, len: usize) -> Option<&'a str> {
        std::str::from_utf8(self.take(len)?).ok()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

/// A cursor that writes into a fixed buffer and remembers when it was too small.
pub(crate) struct Writer<'a> {
    buffer: &'a mut [u8],
    at: usize,
    overflow: bool,
}

impl<'a> Writer<'a> {
    #[inline]
    pub(crate) fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, at: 0, overflow: false }
    }

    #[inline]
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        match self.buffer.get_mut(self.at..self.at.saturating_add(bytes.len())) {
            Some(slot) => {
                slot.copy_from_slice(bytes);
                self.at += bytes.len();
            }
            None => self.overflow = true,
        }
    }

    #[inline]
    pub(crate) fn u16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }

    #[inline]
    pub(crate) fn u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    #[inline]
    pub(crate) fn u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    /// Leaves room to be patched later.
    #[inline]
    pub(crate) fn skip(&mut self, len: usize) {
        match self.buffer.get_mut(self.at..self.at.saturating_add(len)) {
            Some(slot) => {
                slot.fill(0);
                self.at += len;
            }
            None => self.overflow = true,
        }
    }

    /// Overwrites what was written before.
    #[inline]
    pub(crate) fn patch(&mut self, at: usize, bytes: &[u8]) {
        if let Some(slot) = self.buffer.get_mut(at..at.saturating_add(bytes.len())) {
            slot.copy_from_slice(bytes);
        }
    }

    #[inline]
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Bytes written; `None` when they did not fit.
    #[inline]
    pub(crate) fn finish(self) -> Option<usize> {
        (!self.overflow).then_some(self.at)
    }
}
