//! Buffers on the stack for elements that are widened to f32 slice by slice.

use std::mem::MaybeUninit;

/// Elements that are widened at a time.
pub(crate) const WIDEN: usize = 256;

/// A buffer of [`WIDEN`] elements. Only the part in use is initialised: for an op on a few elements, clearing all of it would be
/// most of the work.
pub(crate) struct WidenBuffer<T>([MaybeUninit<T>; WIDEN]);

impl<T: Copy> WidenBuffer<T> {
    #[inline(always)]
    pub fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; WIDEN])
    }

    /// `len` elements, or [`WIDEN`] where that is less, that are `value`.
    #[inline(always)]
    pub fn filled(&mut self, value: T, len: usize) -> &mut [T] {
        let room = &mut self.0[..len.min(WIDEN)];
        for place in room.iter_mut() {
            place.write(value);
        }
        // SAFETY: all of it was just written.
        unsafe { &mut *(room as *mut [MaybeUninit<T>] as *mut [T]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_there_is_room_for() {
        let mut scratch = WidenBuffer::new();
        for len in [0, 1, WIDEN, WIDEN + 1] {
            let room = scratch.filled(len, len);
            assert_eq!(room.len(), len.min(WIDEN));
            assert!(room.iter().all(|&v| v == len));
        }
    }
}
