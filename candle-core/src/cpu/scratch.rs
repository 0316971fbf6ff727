//! Buffers on the stack for elements that are widened to f32 slice by slice.

use std::mem::MaybeUninit;

/// Number of elements that are widened at a time.
pub(crate) const WIDEN: usize = 256;

/// A buffer of [`WIDEN`] elements. Only the used part is initialised: for an op on a few elements, clearing the whole buffer would be most
/// of the work.
pub(crate) struct WidenBuffer<T>([MaybeUninit<T>; WIDEN]);

impl<T: Copy> WidenBuffer<T> {
    #[inline(always)]
    pub fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; WIDEN])
    }

    /// The first `len` elements, at most [`WIDEN`], initialised to `value`.
    #[inline(always)]
    pub fn filled(&mut self, value: T, len: usize) -> &mut [T] {
        let used = &mut self.0[..len.min(WIDEN)];
        for element in used.iter_mut() {
            element.write(value);
        }
        // SAFETY: all elements were just written.
        unsafe { &mut *(used as *mut [MaybeUninit<T>] as *mut [T]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_the_capacity_is_filled() {
        let mut scratch = WidenBuffer::new();
        for len in [0, 1, WIDEN, WIDEN + 1] {
            let used = scratch.filled(len, len);
            assert_eq!(used.len(), len.min(WIDEN));
            assert!(used.iter().all(|&v| v == len));
        }
    }
}
