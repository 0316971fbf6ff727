//! Kernels as values, which are the keys of their pipelines.
//!
//! A kernel is a value ([`Kernel`]): a struct of everything that determines its pipeline. The struct is the key of the pipeline, its
//! `Debug` form is the pipeline's label, and its shader (`shader.rs`) is generated from nothing else.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::{BuildHasherDefault, Hash, Hasher};

pub(super) use super::adapter::Caps;
pub(super) use super::elem::Elem;
#[cfg(test)]
pub(super) use super::shader::assert_valid;
pub(super) use super::shader::Shader;

/// Parameters of a kernel: one struct, declared once for Rust and for WGSL.
pub(super) trait Params: bytemuck::Pod {
    /// The struct's declaration in WGSL, under the name `Params`.
    const WGSL: &'static str;
}

/// Shapes and strides in parameters: up to eight dimensions, the last dimension at the last used index.
pub(super) type Dims = [u32; 8];

/// Declares a parameter struct for both languages. Fields of type `Dims` must come first: WGSL aligns them to 16 bytes.
macro_rules! params {
    (@rust u32) => { u32 };
    (@rust f32) => { f32 };
    (@rust Dims) => { $crate::webgpu_backend::kernel::Dims };
    (@wgsl u32) => { "u32" };
    (@wgsl f32) => { "f32" };
    (@wgsl Dims) => { "array<vec4<u32>, 2>" };
    ($name:ident { $($field:ident: $ty:tt),* $(,)? }) => {
        #[repr(C)]
        #[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
        pub(super) struct $name { $(pub(super) $field: params!(@rust $ty)),* }

        impl $crate::webgpu_backend::kernel::Params for $name {
            const WGSL: &'static str = concat!(
                "struct Params {\n",
                $("  ", stringify!($field), ": ", params!(@wgsl $ty), ",\n",)*
                "}\n",
            );
        }
    };
}
pub(super) use params;

/// A kernel as a value: dtypes, ranks, tiles, features and whatever else its pipeline is specialised for.
///
/// Two equal values share a pipeline. `Debug` names it in logs, profiles and dumps.
pub(super) trait Kernel: Hash + Eq + Debug + Clone + Send + Sync + 'static {
    type Params: Params;

    /// The WGSL, which depends only on the value and on the adapter's capabilities.
    fn shader(&self, caps: &Caps) -> Shader;
}

/// Any kernel, as the key of its pipeline. A lookup borrows the value and allocates nothing.
pub(super) trait AnyKernel: Any + Send + Sync {
    fn number(&self) -> u64;
    fn equals(&self, other: &(dyn AnyKernel + 'static)) -> bool;
    fn boxed(&self) -> Box<dyn AnyKernel>;
}

impl<T: Hash + Eq + Clone + Send + Sync + 'static> AnyKernel for T {
    fn number(&self) -> u64 {
        let mut hasher = Mix::default();
        TypeId::of::<T>().hash(&mut hasher);
        self.hash(&mut hasher);
        hasher.finish()
    }

    fn equals(&self, other: &(dyn AnyKernel + 'static)) -> bool {
        (other as &dyn Any).downcast_ref::<T>() == Some(self)
    }

    fn boxed(&self) -> Box<dyn AnyKernel> {
        Box::new(self.clone())
    }
}

impl Hash for dyn AnyKernel {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.number());
    }
}

impl PartialEq for dyn AnyKernel {
    fn eq(&self, other: &Self) -> bool {
        self.equals(other)
    }
}

impl Eq for dyn AnyKernel {}

/// A hash of few instructions: a rotation, an exclusive or and a product for each field. The standard library's hash takes a tenth of the
/// time of a launch for resistance to hash flooding, which kernel keys do not need.
#[derive(Default)]
pub(super) struct Mix(u64);

impl Mix {
    fn add(&mut self, value: u64) {
        // 2^64 over the golden ratio, an odd number.
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for Mix {
    /// Rotates the product's upper bits, the best ones, to those that a table uses.
    fn finish(&self) -> u64 {
        self.0.rotate_left(26)
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.add(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.add(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.add(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.add(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.add(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.add(value as u64);
    }
}

/// Pipelines, or their sources, by kernel.
pub(super) type ByKernel<T> = HashMap<Box<dyn AnyKernel>, T, BuildHasherDefault<Mix>>;

#[cfg(test)]
mod tests {
    use super::{AnyKernel, ByKernel, Elem};

    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    struct Cast {
        from: Elem,
        to: Elem,
    }

    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    struct Copy {
        from: Elem,
        to: Elem,
    }

    #[test]
    fn a_pipeline_is_found_by_type_and_value_alone() {
        let elems = [Elem::F32, Elem::F16, Elem::U8, Elem::I64];
        let mut cache = ByKernel::default();
        for (number, from) in elems.into_iter().enumerate() {
            for to in elems {
                cache.insert(Cast { from, to }.boxed(), ("cast", number, to));
                cache.insert(Copy { from, to }.boxed(), ("copy", number, to));
            }
        }
        assert_eq!(cache.len(), 2 * elems.len() * elems.len());
        let find = |kernel: &(dyn AnyKernel + 'static)| cache.get(kernel).copied();
        for (number, from) in elems.into_iter().enumerate() {
            for to in elems {
                assert_eq!(find(&Cast { from, to }), Some(("cast", number, to)));
                assert_eq!(find(&Copy { from, to }), Some(("copy", number, to)));
            }
        }
        let other = Cast {
            from: Elem::F32,
            to: Elem::F64,
        };
        assert_eq!(find(&other), None);
    }
}
