//! Values that contain wgpu's objects and are shared between threads.

use std::ops::{Deref, DerefMut};

/// A value that is `Send` and `Sync`, which [`Shared::new`] requires.
///
/// The compiler derives both for wgpu's objects through more nested types than the default recursion limit of 128 allows, in each crate
/// that sends a tensor to a thread (error E0275). Here it derives them once, and for other crates the derivation ends at this type.
#[derive(Debug)]
pub(super) struct Shared<T>(T);

impl<T: Send + Sync> Shared<T> {
    pub(super) fn new(value: T) -> Self {
        Self(value)
    }

    pub(super) fn into_inner(self) -> T {
        self.0
    }
}

// SAFETY: `new` is the only way to a value of this type, and it requires `T: Send`.
unsafe impl<T> Send for Shared<T> {}

// SAFETY: as above, with `T: Sync`.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
