//! Variables by name: the parameters of a model in training.

use crate::Init;
use candle_core::{DType, Device, Error, Result, Shape, Tensor, Var};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Variables by name. Clones share them. [`VarBuilder::from_varmap`](crate::VarBuilder) makes a model that creates its
/// variables in here.
#[derive(Clone)]
pub struct VarMap {
    data: Arc<Mutex<HashMap<String, Var>>>,
}

impl VarMap {
    /// A map without variables.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self {
            data: Arc::new(Mutex::new(HashMap::new())),
        }
    }

    /// The variables, in no particular order.
    pub fn all_vars(&self) -> Vec<Var> {
        self.lock().values().cloned().collect()
    }

    /// The map itself.
    pub fn data(&self) -> &Mutex<HashMap<String, Var>> {
        &self.data
    }

    /// Writes all variables to a safetensors file.
    ///
    /// # Errors
    /// The file cannot be written, or a variable has a dtype that the format does not know.
    pub fn save<P: AsRef<Path>>(&self, path: P) -> Result<()> {
        let tensors: HashMap<String, Tensor> = self
            .lock()
            .iter()
            .map(|(name, var)| (name.clone(), var.as_detached_tensor()))
            .collect();
        candle_core::safetensors::save(&tensors, path)
    }

    /// Sets every variable from the tensor of its name in a safetensors file. Other tensors of the file are ignored.
    ///
    /// # Errors
    /// The file cannot be read, or a variable is not in it with the same shape and dtype; the error names it. Variables may
    /// have been set by then.
    pub fn load<P: AsRef<Path>>(&mut self, path: P) -> Result<()> {
        let path = path.as_ref();
        let named = |err: Error, name: &str| {
            Error::msg(format!("cannot set variable {name}: {err}")).with_path(path)
        };
        // SAFETY: as everywhere that weights are mapped, the file must not be changed while it is read.
        let file = unsafe { candle_core::safetensors::MmapedSafetensors::new(path)? };
        for (name, var) in self.lock().iter() {
            file.load(name, var.device())
                .and_then(|tensor| var.set(&tensor))
                .map_err(|err| named(err, name))?;
        }
        Ok(())
    }

    /// Sets the variable `name`.
    ///
    /// # Errors
    /// The variable does not exist, or has another shape or dtype.
    pub fn set_one<K: AsRef<str>, V: AsRef<Tensor>>(&mut self, name: K, value: V) -> Result<()> {
        let name = name.as_ref();
        match self.lock().get(name) {
            None => candle_core::bail!("cannot set variable {name}: no variable has that name"),
            Some(var) => var
                .set(value.as_ref())
                .map_err(|err| Error::msg(format!("cannot set variable {name}: {err}"))),
        }
    }

    /// Sets variables from pairs of name and value.
    ///
    /// # Errors
    /// Those of [`VarMap::set_one`], for the first pair that has one.
    pub fn set<I: Iterator<Item = (K, V)>, K: AsRef<str>, V: AsRef<Tensor>>(
        &mut self,
        mut iter: I,
    ) -> Result<()> {
        iter.try_for_each(|(name, value)| self.set_one(name, value))
    }

    /// The variable `path`, made as `init` says if there is none yet.
    ///
    /// # Errors
    /// It exists with another shape, or it cannot be made.
    pub fn get<S: Into<Shape>>(
        &self,
        shape: S,
        path: &str,
        init: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let shape = shape.into();
        let mut vars = self.lock();
        if let Some(var) = vars.get(path) {
            if var.shape() != &shape {
                return Err(Error::UnexpectedShape {
                    msg: format!("shape mismatch on {path}"),
                    expected: shape,
                    got: var.shape().clone(),
                }
                .bt());
            }
            return Ok(var.as_tensor().clone());
        }
        let var = init.var(shape, dtype, device)?;
        let tensor = var.as_tensor().clone();
        vars.insert(path.to_string(), var);
        Ok(tensor)
    }

    /// The variable `path`, if it exists.
    pub(crate) fn find(&self, path: &str) -> Option<Tensor> {
        self.lock().get(path).map(|var| var.as_tensor().clone())
    }

    /// A panic while the lock is held leaves the variables complete, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Var>> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
