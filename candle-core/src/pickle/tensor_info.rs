//! A checkpoint's description of a tensor: a call that would rebuild it.

use std::path::Path;

use super::Object;
use crate::bounded_read::shown;
use crate::{Context, DType, Layout, Result, Shape};

/// Maximum number of elements of a tensor that repeats its elements (a stride of 0, as after `expand`); a mask has fewer. A tensor without
/// repetition has no more elements than its storage.
const MAX_REPEATED: usize = 1 << 26;

/// A tensor in a checkpoint: the location and layout of its elements.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Its dtype. PyTorch's `bool` is u8.
    pub dtype: DType,
    /// Its shape, its strides in elements of the storage, and the offset of its first element. As in Candle, that offset counts bytes,
    /// unlike that of a tensor's layout.
    pub layout: Layout,
    /// The entry of the archive that holds its storage; in a file of PyTorch before 1.6, the storage's key.
    pub path: String,
    /// Number of elements in its storage, which other tensors may share.
    pub storage_size: usize,
}

/// The dtype for the name of a PyTorch storage class, or `None` if it has no counterpart here.
fn dtype_of_storage(class: &str) -> Option<DType> {
    Some(match class {
        "FloatStorage" => DType::F32,
        "DoubleStorage" => DType::F64,
        "HalfStorage" => DType::F16,
        "BFloat16Storage" => DType::BF16,
        "ByteStorage" | "BoolStorage" => DType::U8,
        "ShortStorage" => DType::I16,
        "IntStorage" => DType::I32,
        "LongStorage" => DType::I64,
        "Float8_e4m3fnStorage" => DType::F8E4M3,
        _ => return None,
    })
}

/// Bytes per element of a PyTorch storage class, including classes without a counterpart here.
pub(super) fn element_size(class: &str) -> Option<usize> {
    if let Some(dtype) = dtype_of_storage(class) {
        return Some(dtype.size_in_bytes());
    }
    Some(match class {
        "CharStorage" | "UntypedStorage" | "QInt8Storage" | "QUInt8Storage" => 1,
        "QInt32Storage" => 4,
        "ComplexFloatStorage" => 8,
        "ComplexDoubleStorage" => 16,
        _ => return None,
    })
}

/// Key and class of a storage.
pub(super) fn storage_of(id: Object) -> Result<(String, String)> {
    let storage = StorageRef::new(Object::PersistentLoad(Box::new(id))).context("storage")?;
    Ok((storage.key, storage.class))
}

/// The dtype for a name in `torch`, which newer checkpoints write next to a storage without dtype.
fn dtype_of_name(name: &str) -> Option<DType> {
    Some(match name {
        "float32" => DType::F32,
        "float64" => DType::F64,
        "float16" => DType::F16,
        "bfloat16" => DType::BF16,
        "uint8" | "bool" => DType::U8,
        "int16" => DType::I16,
        "int32" => DType::I32,
        "int64" => DType::I64,
        "uint32" => DType::U32,
        "float8_e4m3fn" => DType::F8E4M3,
        _ => return None,
    })
}

/// A reference to a storage, `("storage", class, key, location, size)`; before PyTorch 1.6 with `None` at the end.
struct StorageRef {
    class: String,
    key: String,
    size: usize,
}

impl StorageRef {
    fn new(id: Object) -> Result<Self> {
        let mut id = id.persistent_load()?.tuple()?;
        if id.len() == 6 && id[5] != Object::None {
            crate::bail!("a storage that is a view of another one, as PyTorch before 0.4 wrote it")
        }
        id.truncate(5);
        let Ok([kind, class, key, _location, size]) = <[Object; 5]>::try_from(id) else {
            crate::bail!("a storage is described by five values")
        };
        if kind != Object::Unicode("storage".to_string()) {
            crate::bail!("expected \"storage\", found {}", kind.summary())
        }
        Ok(Self {
            class: class.class()?.1,
            key: key.unicode()?,
            size: size_of(size, "size")?,
        })
    }
}

fn size_of(object: Object, what: &str) -> Result<usize> {
    usize::try_from(object).map_err(|other| {
        crate::Error::msg(format_args!(
            "{what}: expected a count, found {}",
            other.summary()
        ))
    })
}

fn sizes_of(object: Object, what: &str) -> Result<Vec<usize>> {
    let items = object.tuple()?.into_iter();
    items.map(|item| size_of(item, what)).collect()
}

/// The call that rebuilds a tensor, without the wrappers of parameters and subclasses.
fn rebuild_call(object: Object) -> Option<(String, Vec<Object>)> {
    let (callable, args) = object.reduce().ok()?;
    let (module, function) = callable.class().ok()?;
    let mut args = args.tuple().ok()?;
    match (module.as_str(), function.as_str()) {
        // (data, requires_grad, backward_hooks[, state])
        ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state")
            if !args.is_empty() =>
        {
            rebuild_call(args.swap_remove(0))
        }
        // (function, class, arguments, state)
        ("torch._tensor", "_rebuild_from_type_v2") if args.len() >= 3 => {
            let (args, callable) = (args.swap_remove(2), args.swap_remove(0));
            rebuild_call(Object::Reduce {
                callable: Box::new(callable),
                args: Box::new(args),
            })
        }
        ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2" | "_rebuild_tensor_v3") => {
            Some((function, args))
        }
        _ => None,
    }
}

impl Object {
    /// Reads the description of a tensor whose storage is below `dir_name`, or returns `None` for anything else: other values, tensors
    /// without a name, and dtypes without a counterpart here.
    ///
    /// Recognises `_rebuild_tensor`, `_rebuild_tensor_v2` and `_v3`, also inside of `_rebuild_parameter` and `_rebuild_from_type_v2`. None
    /// of them is called.
    ///
    /// # Errors
    /// If the description is damaged or exceeds its storage; the error names the tensor.
    pub fn into_tensor_info(self, name: Self, dir_name: &Path) -> Result<Option<TensorInfo>> {
        let (Ok(name), Some((function, args))) = (name.unicode(), rebuild_call(self)) else {
            return Ok(None);
        };
        let info = tensor_info(&name, &function, args, dir_name);
        info.with_context(|| format!("pickle: tensor {}", shown(&name)))
    }
}

fn tensor_info(
    name: &str,
    function: &str,
    args: Vec<Object>,
    dir_name: &Path,
) -> Result<Option<TensorInfo>> {
    let mut args = args.into_iter();
    let mut next = |what: &str| {
        let missing = || crate::Error::msg(format_args!("{function}: missing {what}"));
        args.next().ok_or_else(missing)
    };
    let storage = StorageRef::new(next("storage")?).context("storage")?;
    let start = size_of(next("offset")?, "offset")?;
    let dims = sizes_of(next("shape")?, "shape").context("shape")?;
    let stride = sizes_of(next("stride")?, "stride").context("stride")?;
    let (dtype, storage_size) = match function {
        // (…, requires_grad, backward_hooks, dtype, metadata), and the size counts bytes.
        "_rebuild_tensor_v3" => {
            let (_, _) = (next("requires_grad")?, next("backward_hooks")?);
            let Some(dtype) = dtype_of_name(&next("dtype")?.class()?.1) else {
                return Ok(None);
            };
            (dtype, storage.size / dtype.size_in_bytes())
        }
        _ => match dtype_of_storage(&storage.class) {
            Some(dtype) => (dtype, storage.size),
            None => return Ok(None),
        },
    };
    if dims.len() != stride.len() {
        crate::bail!("shape {dims:?} and stride {stride:?} differ in their number of dimensions")
    }
    let layout = Layout::new(Shape::from(dims), stride, start);
    check_layout(&layout, storage_size)?;
    let start_bytes = start.checked_mul(dtype.size_in_bytes());
    let start_bytes = start_bytes.context("offset: the size in bytes overflows")?;
    let (shape, stride) = (layout.shape().clone(), layout.stride().to_vec());
    let layout = Layout::new(shape, stride, start_bytes);
    let dir = dir_name.to_string_lossy().replace('\\', "/");
    let path = if dir.is_empty() {
        storage.key
    } else {
        format!("{dir}/{}", storage.key)
    };
    Ok(Some(TensorInfo {
        name: name.to_string(),
        dtype,
        layout,
        path,
        storage_size,
    }))
}

/// Number of elements from the start of the storage to the last element of the layout.
///
/// `None` if the number overflows.
pub(super) fn span(layout: &Layout) -> Option<usize> {
    if layout.shape().elem_count() == 0 {
        return Some(0);
    }
    let steps = layout.dims().iter().zip(layout.stride());
    steps
        .into_iter()
        .try_fold(1usize, |span, (&size, &stride)| {
            (size - 1).checked_mul(stride)?.checked_add(span)
        })
}

fn check_layout(layout: &Layout, storage_size: usize) -> Result<()> {
    let end = span(layout).and_then(|span| span.checked_add(layout.start_offset()));
    if end.is_none_or(|end| end > storage_size) {
        crate::bail!(
            "shape {:?}, stride {:?}, offset {}: reaches past its storage of {storage_size} elements",
            layout.shape(),
            layout.stride(),
            layout.start_offset()
        )
    }
    let count = layout.shape().elem_count();
    if count > storage_size.max(MAX_REPEATED) {
        crate::bail!(
            "shape {:?}: repeats a storage of {storage_size} elements to more than {MAX_REPEATED}",
            layout.shape()
        )
    }
    Ok(())
}
