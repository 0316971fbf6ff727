//! What a component imports and exports, and what of it this host lacks.

use std::fmt::{self, Write};

use semver::Version;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::wasm_wave::wasm::DisplayType;
use wasmtime::component::{Component, Linker};
use wasmtime::Engine;

use crate::guest::State;
use crate::runner::Export;

/// The version of WASI that wasmtime-wasi 48 offers.
const WASI: &str = "0.2.12";
/// The version of `wasi:gpu` in `wit/0.1`.
const WASI_GPU: &str = "0.1.0";

/// The result of [`Runner::inspect`](crate::Runner::inspect). Its `Display` is a report of several lines.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// Whether it is a core module, and the rest is of the component made from it.
    pub core_module: bool,
    /// Whether it exports `wasi:cli/run`.
    pub command: bool,
    /// The imported interfaces.
    pub imports: Vec<Interface>,
    /// The exported interfaces.
    pub exports: Vec<Interface>,
}

/// An interface, or functions that belong to none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Such as `wasi:gpu/compute@0.1.0`; empty for functions that belong to no interface.
    pub name: String,
    /// Its functions.
    pub functions: Vec<Function>,
    /// The kind of an import or export that is not an interface of functions, such as a component. No host of this crate supports these.
    pub unsupported: Option<&'static str>,
}

/// A function of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Its parameters and result, such as `(size: u64) -> u32`.
    pub signature: String,
    /// Whether this host lacks it, if it is imported.
    pub lacking: bool,
}

impl Interface {
    /// The parts that this host lacks: the interface's name if it lacks all of it, else names of functions.
    pub fn lacking(&self) -> Vec<String> {
        if let Some(kind) = self.unsupported {
            return vec![format!("{} ({kind})", self.name)];
        }
        let lacking = |function: &&Function| function.lacking;
        let functions: Vec<&Function> = self.functions.iter().filter(lacking).collect();
        match (&self.name[..], functions.len()) {
            (_, 0) => Vec::new(),
            ("", _) => functions.iter().map(|f| f.name.clone()).collect(),
            (name, count) if count == self.functions.len() => vec![name.to_string()],
            (name, _) => functions
                .iter()
                .map(|f| format!("{name}#{}", f.name))
                .collect(),
        }
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.command {
            "a command"
        } else {
            "a library"
        };
        if self.core_module {
            writeln!(f, "{kind}, a core module; as a component it has")?
        } else {
            writeln!(f, "{kind}, a component")?
        }
        for (title, interfaces) in [("imports", &self.imports), ("exports", &self.exports)] {
            writeln!(
                f,
                "{title}{}",
                if interfaces.is_empty() { ": none" } else { "" }
            )?;
            for interface in interfaces {
                interface.fmt(f)?;
            }
        }
        let lacking: Vec<String> = self.imports.iter().flat_map(Interface::lacking).collect();
        match lacking[..] {
            [] => writeln!(f, "this host lacks: nothing"),
            _ => writeln!(f, "this host lacks: {}", lacking.join(", ")),
        }
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let indent = if self.name.is_empty() {
            "  "
        } else {
            let kind = self
                .unsupported
                .map_or(String::new(), |kind| format!(" ({kind})"));
            writeln!(f, "  {}{kind}", self.name)?;
            "    "
        };
        for function in &self.functions {
            let lacking = if function.lacking { "  [lacking]" } else { "" };
            writeln!(
                f,
                "{indent}{}{}{lacking}",
                function.name, function.signature
            )?;
        }
        Ok(())
    }
}

/// Whether this is the function that makes a component a command.
pub(crate) fn is_run(export: &Export) -> bool {
    let interface = export.interface.as_deref();
    export.function == "run"
        && interface
            .is_some_and(|name| name == "wasi:cli/run" || name.starts_with("wasi:cli/run@0.2."))
}

/// The functions that a component exports.
pub(crate) fn exports(engine: &Engine, component: &Component) -> Vec<Export> {
    exported(engine, component)
        .into_iter()
        .flat_map(|interface| {
            let name = (!interface.name.is_empty()).then_some(interface.name);
            interface.functions.into_iter().map(move |function| Export {
                interface: name.clone(),
                function: function.name,
            })
        })
        .collect()
}

/// The exports of a component.
pub(crate) fn exported(engine: &Engine, component: &Component) -> Vec<Interface> {
    let ty = component.component_type();
    let items = ty.exports(engine).map(|(name, item)| (name, item.ty));
    interfaces(engine, items, |_, _| false)
}

/// The imports of a component, each function with whether `linker` lacks it.
pub(crate) fn imported(
    engine: &Engine,
    linker: &Linker<State>,
    component: &Component,
) -> Vec<Interface> {
    let ty = component.component_type();
    let items = ty.imports(engine).map(|(name, item)| (name, item.ty));
    // A linker does not tell what it has, but it refuses to have it twice.
    let mut trial = linker.clone();
    interfaces(engine, items, |interface, function| {
        let mut place = match interface {
            "" => trial.root(),
            name => match trial.instance(&offered(name)) {
                Ok(place) => place,
                Err(_) => return true,
            },
        };
        place.func_new(function, |_, _, _, _| Ok(())).is_ok()
    })
}

/// The name under which this host has an interface that the guest names with a compatible version.
fn offered(name: &str) -> String {
    let Some((interface, version)) = name.split_once('@') else {
        return name.to_string();
    };
    let ours = match interface.split_once('/') {
        Some(("wasi:gpu", _)) => WASI_GPU,
        Some((package, _)) if package.starts_with("wasi:") => WASI,
        _ => return name.to_string(),
    };
    let (Ok(asked), Ok(have)) = (Version::parse(version), Version::parse(ours)) else {
        return name.to_string();
    };
    let compatible = asked.major == have.major && asked.minor == have.minor && asked.pre.is_empty();
    if compatible {
        format!("{interface}@{ours}")
    } else {
        name.to_string()
    }
}

fn interfaces<'a>(
    engine: &Engine,
    items: impl Iterator<Item = (&'a str, ComponentItem)>,
    mut lacking: impl FnMut(&str, &str) -> bool,
) -> Vec<Interface> {
    let mut found: Vec<Interface> = Vec::new();
    let mut function = |interface: &str, name: &str, ty: &_| Function {
        name: name.to_string(),
        signature: signature(ty),
        lacking: lacking(interface, name),
    };
    let mut bare = Vec::new();
    for (name, item) in items {
        let (functions, unsupported) = match item {
            ComponentItem::ComponentFunc(ty) => {
                bare.push(function("", name, &ty));
                continue;
            }
            ComponentItem::ComponentInstance(ty) => {
                let functions = ty
                    .exports(engine)
                    .filter_map(|(inner, item)| match item.ty {
                        ComponentItem::ComponentFunc(ty) => Some(function(name, inner, &ty)),
                        _ => None,
                    });
                (functions.collect(), None)
            }
            // A name for a type, which needs nothing of a host.
            ComponentItem::Type(_) => continue,
            ComponentItem::Resource(_) => (Vec::new(), Some("a resource")),
            ComponentItem::Component(_) => (Vec::new(), Some("a component")),
            ComponentItem::Module(_) => (Vec::new(), Some("a core module")),
            ComponentItem::CoreFunc(_) => (Vec::new(), Some("a core function")),
        };
        found.push(Interface {
            name: name.to_string(),
            functions,
            unsupported,
        });
    }
    if !bare.is_empty() {
        found.push(Interface {
            name: String::new(),
            functions: bare,
            unsupported: None,
        });
    }
    found
}

fn signature(ty: &wasmtime::component::types::ComponentFunc) -> String {
    let params: Vec<String> = ty
        .params()
        .map(|(name, ty)| format!("{name}: {}", DisplayType(&ty)))
        .collect();
    let mut text = format!("({})", params.join(", "));
    for result in ty.results() {
        // Writing to a String does not fail.
        let _ = write!(text, " -> {}", DisplayType(&result));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compatible_versions_are_the_same_interface() {
        for (asked, have) in [
            ("wasi:gpu/compute@0.1.0", "wasi:gpu/compute@0.1.0"),
            ("wasi:gpu/compute@0.1.7", "wasi:gpu/compute@0.1.0"),
            ("wasi:gpu/compute@0.2.0", "wasi:gpu/compute@0.2.0"),
            ("wasi:gpu/compute@0.1.0-rc", "wasi:gpu/compute@0.1.0-rc"),
            ("wasi:gpu/compute", "wasi:gpu/compute"),
            ("wasi:io/poll@0.2.0", "wasi:io/poll@0.2.12"),
            ("wasi:io/poll@0.3.0", "wasi:io/poll@0.3.0"),
            ("a:b/c@0.2.0", "a:b/c@0.2.0"),
            ("@@", "@@"),
        ] {
            assert_eq!(offered(asked), have);
        }
    }

    #[test]
    fn what_is_lacking_is_named_as_shortly_as_possible() {
        let function = |name: &str, lacking| Function {
            name: name.into(),
            signature: "()".into(),
            lacking,
        };
        let interface = |name: &str, functions| Interface {
            name: name.into(),
            functions,
            unsupported: None,
        };
        let some = interface("a:b/c", vec![function("x", true), function("y", false)]);
        assert_eq!(some.lacking(), ["a:b/c#x"]);
        let all = interface("a:b/c", vec![function("x", true), function("y", true)]);
        assert_eq!(all.lacking(), ["a:b/c"]);
        let none = interface("a:b/c", vec![function("x", false)]);
        assert!(none.lacking().is_empty());
        let bare = interface("", vec![function("x", true)]);
        assert_eq!(bare.lacking(), ["x"]);
    }
}
