//! One shader on one backend.

use naga::back::{hlsl, msl, pipeline_constants};
use naga::front::wgsl;
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::Module;

use crate::backend::{hlsl_options, msl_options, Backend, Language, FEATURES};

/// The entry point of candle-core's pipelines.
const ENTRY_POINT: &str = "main";

/// The outcome of translating a valid shader for a backend.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    Translated,
    /// Its adapters do not have these features, by which candle-core would choose the shader.
    Lacking(String),
}

/// `Err` is naga's reason, where the backend has all features that the shader needs, or where no list of features makes it valid.
pub fn translate(text: &str, backend: &Backend) -> Result<Outcome, String> {
    let has = backend.capabilities();
    let (module, info) = match valid(text, has) {
        Ok(valid) => valid,
        Err(reason) => return lacking(text, has).map(Outcome::Lacking).ok_or(reason),
    };
    let mut entry_points = module.entry_points.iter();
    let entry_point = entry_points
        .find(|entry_point| entry_point.name == ENTRY_POINT)
        .ok_or_else(|| format!("no entry point {ENTRY_POINT}"))?;
    let chosen = (entry_point.stage, entry_point.name.clone());
    let place = Some((entry_point.stage, entry_point.name.as_str()));
    let (module, info) =
        pipeline_constants::process_overrides(&module, &info, place, &Default::default())
            .map_err(|err| err.to_string())?;
    // As users and as tests run our kernels, then as both run those that come from outside of candle-core.
    for (checks, zeros) in [(false, false), (true, false), (true, true)] {
        let written = match backend.language {
            Language::Msl(major, minor) => {
                let options = msl_options(&module, ENTRY_POINT, (major, minor), checks, zeros);
                write_msl(&module, &info, &options, &chosen)
            }
            Language::Hlsl(model) => {
                let options = hlsl_options(&module, model, checks, zeros);
                write_hlsl(&module, &info, &options, &chosen)
            }
        };
        written.map_err(|reason| format!("{reason} (checks: {checks})"))?;
    }
    Ok(Outcome::Translated)
}

/// The shader, if these capabilities are all that it needs.
fn valid(text: &str, capabilities: Capabilities) -> Result<(Module, ModuleInfo), String> {
    let mut options = wgsl::Options::new();
    options.capabilities = capabilities;
    let module = wgsl::Frontend::new_with_options(options)
        .parse(text)
        .map_err(|err| err.emit_to_string(text))?;
    let info = Validator::new(ValidationFlags::all(), capabilities)
        .validate(&module)
        .map_err(|err| err.emit_to_string(text))?;
    Ok((module, info))
}

/// The fewest features that have to come to `has` for the shader to be valid; `None` where all of them are not enough.
fn lacking(text: &str, has: Capabilities) -> Option<String> {
    let absent = FEATURES.iter().filter(|(one, _)| !has.contains(*one));
    let mut needed: Vec<_> = absent.copied().collect();
    let is_enough = |features: &[(Capabilities, &str)]| {
        let all = features.iter().fold(has, |all, (one, _)| all | *one);
        valid(text, all).is_ok()
    };
    if !is_enough(&needed) {
        return None;
    }
    let mut index = 0;
    while index < needed.len() {
        let without = needed.remove(index);
        if !is_enough(&needed) {
            needed.insert(index, without);
            index += 1;
        }
    }
    let names: Vec<_> = needed.iter().map(|(_, name)| *name).collect();
    Some(names.join(", "))
}

type EntryPoint = (naga::ShaderStage, String);

fn write_msl(
    module: &Module,
    info: &ModuleInfo,
    options: &msl::Options,
    entry_point: &EntryPoint,
) -> Result<(), String> {
    let pipeline = msl::PipelineOptions {
        entry_point: Some(entry_point.clone()),
        allow_and_force_point_size: false,
        vertex_pulling_transform: true,
        vertex_buffer_mappings: Vec::new(),
        binding_array_length_map: Default::default(),
    };
    let (_, translation) =
        msl::write_string(module, info, options, &pipeline).map_err(|err| err.to_string())?;
    let names = translation.entry_point_names.into_iter();
    names
        .map(|name| name.map(drop))
        .collect::<Result<(), _>>()
        .map_err(|err| err.to_string())
}

fn write_hlsl(
    module: &Module,
    info: &ModuleInfo,
    options: &hlsl::Options,
    entry_point: &EntryPoint,
) -> Result<(), String> {
    let pipeline = hlsl::PipelineOptions {
        entry_point: Some(entry_point.clone()),
    };
    let mut text = String::new();
    let reflection = hlsl::Writer::new(&mut text, options, &pipeline)
        .write(module, info, None)
        .map_err(|err| err.to_string())?;
    let names = reflection.entry_point_names.into_iter();
    names
        .map(|name| name.map(drop))
        .collect::<Result<(), _>>()
        .map_err(|err| err.to_string())
}
