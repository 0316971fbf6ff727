//! What the service logs, as objects for a page.

use js_sys::{Function, Object, Reflect};
use std::cell::RefCell;
use std::fmt::Debug;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};
use wasm_bindgen::JsValue;

thread_local! {
    static LISTENER: RefCell<Option<Function>> = const { RefCell::new(None) };
}

/// Tells `listener` from now on.
pub fn listen(listener: Function) {
    LISTENER.with(|current| *current.borrow_mut() = Some(listener));
    // All but the first time there is one, and it is the same.
    let _ = tracing::dispatcher::set_global_default(Dispatch::new(ToListener));
}

/// Tells of what no log tells.
pub fn tell(message: &str, fields: &[(&str, &str)]) {
    let object = Fields(Object::new());
    object.set("level", "ERROR".into());
    object.set("message", message.into());
    for (name, value) in fields {
        object.set(name, (*value).into());
    }
    call(object);
}

fn call(Fields(object): Fields) {
    // Out of the cell before it is called: a listener may set another.
    let listener = LISTENER.with(|current| current.borrow().clone());
    if let Some(listener) = listener {
        // An exception in a listener is ignored; the service continues.
        let _ = listener.call1(&JsValue::NULL, &object);
    }
}

struct ToListener;

impl Subscriber for ToListener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        ["candle_dvm", "candle_engine"]
            .iter()
            .any(|name| metadata.target().starts_with(name))
            && *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(Object::new());
        fields.set("level", event.metadata().level().as_str().into());
        event.record(&mut fields);
        call(fields);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Fields(Object);

impl Fields {
    fn set(&self, name: &str, value: JsValue) {
        // A new object takes every name.
        let _ = Reflect::set(&self.0, &name.into(), &value);
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.set(field.name(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field.name(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field.name(), value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field.name(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field.name(), (value as f64).into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field.name(), (value as f64).into());
    }
}
