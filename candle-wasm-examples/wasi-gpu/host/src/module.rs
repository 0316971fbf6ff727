//! Core modules become components.

use wasi_preview1_component_adapter_provider as adapters;
use wasmparser::{Parser, Payload};
use wit_component::{embed_component_metadata, ComponentEncoder, StringEncoding};
use wit_parser::{PackageId, Resolve, SourceMap};

use crate::error::line;
use crate::{Error, Result};

/// The interface, as `wit/0.1` has it.
const WIT: [(&str, &str); 3] = [
    ("world.wit", include_str!("../../wit/0.1/world.wit")),
    ("compute.wit", include_str!("../../wit/0.1/compute.wit")),
    (
        "ml-kernels.wit",
        include_str!("../../wit/0.1/ml-kernels.wit"),
    ),
];

/// Whether these bytes begin as a core module does, and not as a component.
pub fn is_core_module(wasm: &[u8]) -> bool {
    Parser::is_core_wasm(wasm)
}

/// Makes a component from a core module.
///
/// A module by wit-bindgen carries its world and keeps it. Any other is taken for one that imports `wasi:gpu/compute@0.1.0`,
/// `wasi:gpu/ml-kernels@0.1.0` by the canonical ABI, or nothing of them, and `wasi_snapshot_preview1` (WASI 0.1), which becomes
/// WASI 0.2. With an export `_start` it becomes a command.
///
/// # Errors
/// [`Error::Componentize`], which names an import that is none of these, or an import or export of the wrong type.
pub fn componentize(module: &[u8]) -> Result<Vec<u8>> {
    encode(module).map_err(|err| Error::Componentize(line(&err)))
}

fn encode(module: &[u8]) -> anyhow::Result<Vec<u8>> {
    let (world, start) = look(module)?;
    let mut module = module.to_vec();
    if !world {
        let mut resolve = Resolve::default();
        let package = push_wit(&mut resolve)?;
        let world = resolve.select_world(&[package], Some("ml-compute"))?;
        embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)?;
    }
    let adapter = if start {
        adapters::WASI_SNAPSHOT_PREVIEW1_COMMAND_ADAPTER
    } else {
        adapters::WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER
    };
    ComponentEncoder::default()
        .module(&module)?
        .adapter(adapters::WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, adapter)?
        .validate(true)
        .encode()
}

fn push_wit(resolve: &mut Resolve) -> anyhow::Result<PackageId> {
    let mut sources = SourceMap::new();
    for (path, text) in WIT {
        sources.push_str(path, text);
    }
    let group = sources.parse().map_err(|(_, err)| err)?;
    Ok(resolve.push_group(group)?)
}

/// Whether a module carries its world, and whether it exports `_start`.
fn look(module: &[u8]) -> anyhow::Result<(bool, bool)> {
    let (mut world, mut start) = (false, false);
    for payload in Parser::new(0).parse_all(module) {
        match payload? {
            Payload::CustomSection(section) => {
                world |= section.name().starts_with("component-type");
            }
            Payload::ExportSection(exports) => {
                for export in exports {
                    start |= export?.name == "_start";
                }
            }
            _ => {}
        }
    }
    Ok((world, start))
}
