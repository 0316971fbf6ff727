//! A matrix that several threads write.

use std::marker::PhantomData;

/// A row-major matrix of which several threads write disjoint parts.
pub(crate) struct SharedMatrix<'a, T> {
    start: *mut T,
    len: usize,
    row: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: callers guarantee that no two threads write the same elements (see `at` and `write`).
unsafe impl<T: Send> Sync for SharedMatrix<'_, T> {}

impl<'a, T> SharedMatrix<'a, T> {
    /// `dst` has rows of `row` elements.
    pub(crate) fn new(dst: &'a mut [T], row: usize) -> Self {
        Self {
            start: dst.as_mut_ptr(),
            len: dst.len(),
            row,
            lifetime: PhantomData,
        }
    }

    /// The element in row `i` and column `j`, followed by at least `columns - 1` elements in its row. No two threads may write one element.
    ///
    /// # Panics
    /// When these elements are not in the matrix.
    pub(crate) fn at(&self, i: usize, j: usize, columns: usize) -> *mut T {
        let at = i * self.row + j;
        assert!(
            at + columns <= self.len,
            "a part reaches outside its matrix"
        );
        // SAFETY: the assertion keeps it within the slice.
        unsafe { self.start.add(at) }
    }

    /// Writes elements of row `i` from column `j` on.
    ///
    /// # Safety
    /// No two threads write the same elements.
    ///
    /// # Panics
    /// As [`at`](Self::at).
    pub(crate) unsafe fn write(&self, i: usize, j: usize, elements: &[T])
    where
        T: Clone,
    {
        let start = self.at(i, j, elements.len());
        // SAFETY: `at` has checked that these elements are in the slice, which is borrowed mutably for `'a`.
        let dst = unsafe { std::slice::from_raw_parts_mut(start, elements.len()) };
        dst.clone_from_slice(elements);
    }
}
