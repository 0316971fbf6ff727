//! Bytes in several parts, which are copied to a device as one.

/// The bytes of several parts, from first to last.
pub(crate) struct Parts<'a> {
    /// The rest of the first part, then the others in reverse order.
    rest: Vec<&'a [u8]>,
}

impl<'a> Parts<'a> {
    pub(crate) fn new(parts: &[&'a [u8]]) -> Self {
        Self {
            rest: parts.iter().rev().copied().collect(),
        }
    }

    /// The next bytes, `len` or all that are left, as slices of the parts.
    pub(crate) fn take(&mut self, len: usize) -> Vec<&'a [u8]> {
        let mut taken = Vec::new();
        let mut left = len;
        while left > 0 {
            let Some(part) = self.rest.pop() else { break };
            let (now, later) = part.split_at(part.len().min(left));
            if !later.is_empty() {
                self.rest.push(later);
            }
            if !now.is_empty() {
                taken.push(now);
            }
            left -= now.len();
        }
        taken
    }
}

/// The bytes of `parts` in chunks of `size`, each as slices of the parts.
pub(crate) fn chunks_of<'a>(
    parts: &[&'a [u8]],
    size: usize,
) -> impl Iterator<Item = Vec<&'a [u8]>> {
    let mut parts = Parts::new(parts);
    std::iter::from_fn(move || {
        let chunk = parts.take(size.max(1));
        (!chunk.is_empty()).then_some(chunk)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_all_bytes_in_order() {
        let bytes: Vec<u8> = (0..100).collect();
        let parts = [
            &bytes[..3],
            &[],
            &bytes[3..40],
            &bytes[40..41],
            &bytes[41..],
        ];
        for size in [1, 7, 20, 99, 100, 1000] {
            let chunks = chunks_of(&parts, size);
            let joined: Vec<Vec<u8>> = chunks.map(|chunk| chunk.concat()).collect();
            let expected: Vec<Vec<u8>> = bytes.chunks(size).map(<[u8]>::to_vec).collect();
            assert_eq!(joined, expected, "chunks of {size}");
        }
        assert!(chunks_of(&[&[], &[]], 8).next().is_none());
    }
}
