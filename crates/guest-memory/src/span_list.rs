//! A run of bytes scattered over spans.

use crate::HostSpan;

/// Spans in order, read or written as if they were one run of bytes. Spans that continue each other are merged.
#[derive(Clone, Debug, Default)]
pub struct SpanList {
    spans: Vec<HostSpan>,
    len_bytes: u64,
}

impl SpanList {
    /// No bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a span at the end.
    pub fn push(&mut self, span: HostSpan) {
        if span.is_empty() {
            return;
        }
        self.len_bytes = self.len_bytes.saturating_add(span.len_bytes() as u64);
        if let Some(last) = self.spans.last_mut()
            && last.try_append(&span)
        {
            return;
        }
        self.spans.push(span);
    }

    /// Bytes in all spans.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// The spans.
    pub fn spans(&self) -> &[HostSpan] {
        &self.spans
    }

    /// Whether any span's memory was lost under us.
    pub fn poisoned(&self) -> bool {
        self.spans.iter().any(HostSpan::poisoned)
    }

    /// Cuts the list after `at` bytes; the second half may be empty. `None` if there are fewer bytes.
    pub fn split_at(self, at: u64) -> Option<(Self, Self)> {
        if at > self.len_bytes {
            return None;
        }
        let (mut head, mut tail) = (Self::new(), Self::new());
        let mut left = at;
        for span in self.spans {
            let len = span.len_bytes();
            let in_head = usize::try_from(left).unwrap_or(usize::MAX).min(len);
            left = left.saturating_sub(in_head as u64);
            if in_head == len {
                head.push(span);
            } else {
                head.push(span.part(0, in_head).ok()?);
                tail.push(span.part(in_head, len.saturating_sub(in_head)).ok()?);
            }
        }
        Some((head, tail))
    }

    /// The spans that make up `len_bytes` bytes at `offset`; `None` if there are fewer bytes.
    pub fn slice(&self, offset: u64, len_bytes: u64) -> Option<Self> {
        let end = offset.checked_add(len_bytes).filter(|end| *end <= self.len_bytes)?;
        let mut out = Self::new();
        let mut at = 0u64;
        for span in &self.spans {
            let next = at.saturating_add(span.len_bytes() as u64);
            let from = offset.max(at);
            let to = end.min(next);
            if from < to {
                let skip = usize::try_from(from.saturating_sub(at)).ok()?;
                let len = usize::try_from(to.saturating_sub(from)).ok()?;
                out.push(span.part(skip, len).ok()?);
            }
            at = next;
            if at >= end {
                break;
            }
        }
        Some(out)
    }

    /// Copies bytes out from the start; returns how many there were.
    pub fn read_into(&self, out: &mut [u8]) -> usize {
        let mut done = 0usize;
        for span in &self.spans {
            let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) else { break };
            done = done.saturating_add(span.read_into(rest));
        }
        done
    }

    /// Copies bytes in from the start; returns how many there was room for.
    pub fn write_from(&self, bytes: &[u8]) -> usize {
        let mut done = 0usize;
        for span in &self.spans {
            let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) else { break };
            done = done.saturating_add(span.write_from(rest));
        }
        done
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "a test that overflows fails, as it should")]
mod tests {
    use super::*;
    use crate::HostBuffer;

    fn scattered() -> (SpanList, HostBuffer) {
        let buffer = HostBuffer::new(4096).unwrap();
        let whole = buffer.span();
        let mut list = SpanList::new();
        for (offset, len) in [(100, 10), (110, 5), (300, 7), (0, 3)] {
            list.push(whole.part(offset, len).unwrap());
        }
        (list, buffer)
    }

    #[test]
    fn push_contiguous_spans_are_merged() {
        let (list, _buffer) = scattered();
        assert_eq!(list.spans().iter().map(HostSpan::len_bytes).collect::<Vec<_>>(), [15, 7, 3]);
        assert_eq!(list.len_bytes(), 25);
    }

    #[test]
    fn split_and_slice_everywhere_give_the_same_bytes() {
        let (list, _buffer) = scattered();
        let bytes: Vec<u8> = (1..=25).collect();
        assert_eq!(list.write_from(&bytes), 25);
        for at in 0..=25u64 {
            let (head, tail) = list.clone().split_at(at).unwrap();
            let mut out = vec![0; 25];
            assert_eq!(head.read_into(&mut out) as u64, at);
            tail.read_into(&mut out[at as usize..]);
            assert_eq!(out, bytes);
            for len in 0..=25 - at {
                let part = list.slice(at, len).unwrap();
                let mut out = vec![0; len as usize];
                assert_eq!(part.read_into(&mut out) as u64, len);
                assert_eq!(out, bytes[at as usize..(at + len) as usize]);
            }
        }
        assert!(list.clone().split_at(26).is_none());
        assert!(list.slice(20, 6).is_none());
        assert!(list.slice(1, u64::MAX).is_none());
    }
}
