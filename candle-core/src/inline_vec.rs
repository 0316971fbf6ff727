//! A vector that stores short lists inline, without an allocation.
//!
//! A tensor has its sizes and its strides, and every op creates a tensor: on the heap these two lists would be two of the five allocations
//! of an op on a few elements, and most of its time.

use std::ops::{Deref, DerefMut};

/// Number of items stored inline: enough for the dimensions of nearly all tensors.
const INLINE: usize = 4;

/// A list that is stored inline while it has at most [`INLINE`] items, and on the heap otherwise.
#[derive(Clone)]
pub(crate) enum InlineVec<T> {
    InPlace { len: u8, items: [T; INLINE] },
    OnHeap(Vec<T>),
}

impl<T: Copy> InlineVec<T> {
    /// Maximum number of items without an allocation.
    pub const INLINE: usize = INLINE;

    /// An empty list; `placeholder` fills the unused items.
    pub const fn new(placeholder: T) -> Self {
        Self::InPlace {
            len: 0,
            items: [placeholder; INLINE],
        }
    }

    /// `len` copies of the same item.
    pub fn repeated(item: T, len: usize) -> Self {
        if len <= INLINE {
            Self::InPlace {
                len: len as u8,
                items: [item; INLINE],
            }
        } else {
            Self::OnHeap(vec![item; len])
        }
    }

    /// Appends an item.
    pub fn push(&mut self, item: T) {
        match self {
            Self::InPlace { len, items } if usize::from(*len) < INLINE => {
                items[usize::from(*len)] = item;
                *len += 1;
            }
            Self::InPlace { items, .. } => {
                let mut longer = Vec::with_capacity(2 * INLINE);
                longer.extend_from_slice(items);
                longer.push(item);
                *self = Self::OnHeap(longer);
            }
            Self::OnHeap(items) => items.push(item),
        }
    }
}

impl InlineVec<usize> {
    /// The list without items.
    pub const EMPTY: Self = Self::new(0);

    /// The items as a vector.
    pub fn into_vec(self) -> Vec<usize> {
        match self {
            Self::OnHeap(items) => items,
            few => few.to_vec(),
        }
    }
}

impl<T> Deref for InlineVec<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match self {
            Self::InPlace { len, items } => &items[..usize::from(*len)],
            Self::OnHeap(items) => items,
        }
    }
}

impl<T> DerefMut for InlineVec<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::InPlace { len, items } => &mut items[..usize::from(*len)],
            Self::OnHeap(items) => items,
        }
    }
}

impl From<&[usize]> for InlineVec<usize> {
    #[inline]
    fn from(src: &[usize]) -> Self {
        if src.len() > INLINE {
            return Self::OnHeap(src.to_vec());
        }
        let mut items = [0; INLINE];
        for (item, &v) in items.iter_mut().zip(src) {
            *item = v;
        }
        Self::InPlace {
            len: src.len() as u8,
            items,
        }
    }
}

impl From<Vec<usize>> for InlineVec<usize> {
    fn from(src: Vec<usize>) -> Self {
        if src.len() > INLINE {
            Self::OnHeap(src)
        } else {
            Self::from(src.as_slice())
        }
    }
}

impl<T: Copy> Extend<T> for InlineVec<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        items.into_iter().for_each(|item| self.push(item));
    }
}

impl FromIterator<usize> for InlineVec<usize> {
    fn from_iter<I: IntoIterator<Item = usize>>(items: I) -> Self {
        let mut few = Self::EMPTY;
        few.extend(items);
        few
    }
}

impl<'a, T> IntoIterator for &'a InlineVec<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: PartialEq> PartialEq for InlineVec<T> {
    #[inline]
    fn eq(&self, rhs: &Self) -> bool {
        **self == **rhs
    }
}

impl<T: Eq> Eq for InlineVec<T> {}

impl<T: std::fmt::Debug> std::fmt::Debug for InlineVec<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_a_vector_at_every_length() {
        for len in 0..=2 * INLINE + 1 {
            let expected: Vec<usize> = (10..10 + len).collect();
            let pushed: InlineVec<usize> = expected.iter().copied().collect();
            let from_slice = InlineVec::from(expected.as_slice());
            let from_vec = InlineVec::from(expected.clone());
            for few in [&pushed, &from_slice, &from_vec] {
                assert_eq!(**few, *expected);
                assert_eq!(*few, pushed);
                assert_eq!(format!("{few:?}"), format!("{expected:?}"));
                assert_eq!(few.clone().into_vec(), expected);
            }
            assert_eq!(*InlineVec::repeated(7, len), *vec![7; len]);
        }
        // Unused items of a shorter list do not count.
        assert_eq!(InlineVec::repeated(1, 2), InlineVec::from(vec![1, 1]));
        assert_ne!(InlineVec::repeated(1, 2), InlineVec::repeated(1, 3));
    }
}
