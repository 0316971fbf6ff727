//! A constraint on an answer that JavaScript checks, such as a `Guide` of the module `grammar`.

use browser::files::message;
use browser::options::field;
use candle_engine::generation::Mask;
use candle_engine::{Error, Result};
use js_sys::{Function, Reflect, Uint32Array};
use send_wrapper::SendWrapper;
use wasm_bindgen::prelude::*;
use wasm_bindgen::JsCast;

#[wasm_bindgen]
extern "C" {
    /// The interface `Constraint` of the TypeScript types.
    type JsConstraint;

    #[wasm_bindgen(method, catch)]
    fn allowed(this: &JsConstraint) -> std::result::Result<Uint32Array, JsValue>;

    #[wasm_bindgen(method, catch)]
    fn push(this: &JsConstraint, token: u32) -> std::result::Result<(), JsValue>;
}

/// The option `constraint`. The engine's masks may go to another thread; in a browser an answer stays on the thread that began it.
pub struct Constraint(SendWrapper<JsConstraint>);

impl Constraint {
    /// The constraint in an object of options; none where it has none.
    pub fn of(options: &JsValue) -> std::result::Result<Option<Self>, JsError> {
        let Some(value) = field(options, "constraint") else {
            return Ok(None);
        };
        for name in ["allowed", "push"] {
            let method = Reflect::get(&value, &name.into());
            if !method.is_ok_and(|method| method.is_instance_of::<Function>()) {
                return Err(JsError::new(&format!(
                    "options: `constraint` has no method `{name}`; expected an object with `allowed` and `push`"
                )));
            }
        }
        Ok(Some(Self(SendWrapper::new(value.unchecked_into()))))
    }
}

fn thrown(error: JsValue) -> Error {
    Error::Constraint(message(&error))
}

impl Mask for Constraint {
    fn allowed(&mut self) -> Result<Vec<u32>> {
        Ok(self.0.allowed().map_err(thrown)?.to_vec())
    }

    fn push(&mut self, token: u32) -> Result<()> {
        self.0.push(token).map_err(thrown)
    }
}
