//! PyTorch's checkpoints, `.pt` and `.pth`: zip archives with a Python pickle in them.
//!
//! A pickle is a program for a small machine ([`Stack`]) with instructions ([`OpCode`]) that Python lists in
//! [`pickletools`](https://docs.python.org/3/library/pickletools.html). Python's own machine calls any function that the program names.
//! This one calls none: a call stays a description ([`Object::Reduce`]), and the few calls with which PyTorch rebuilds tensors are
//! recognised by name. Files of PyTorch before 1.6, which are not zip archives, can be read too.
//!
//! ```no_run
//! use candle_core::pickle::PthTensors;
//! # fn main() -> candle_core::Result<()> {
//! let checkpoint = PthTensors::new("model.pth", Some("state_dict"))?;
//! for (name, info) in checkpoint.tensor_infos() {
//!     println!("{name}: {:?} {:?}", info.dtype, info.layout.shape());
//! }
//! let weight = checkpoint.get("conv1.weight")?.expect("the model has a first layer");
//! # Ok(())
//! # }
//! ```

mod checkpoint;
mod graph;
mod legacy;
mod object;
mod opcode;
mod stack;
mod tensor_info;

pub use checkpoint::{read_all, read_all_with_key, read_pth_tensor_info, PthTensors};
pub use object::Object;
pub use opcode::OpCode;
pub use stack::Stack;
pub use tensor_info::TensorInfo;
