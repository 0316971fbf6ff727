//! A `config.json` as Transformers writes it, before it becomes a family's configuration.

use candle_core::{bail, Context, Error, Result};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::blocks::{check_layers, DecoderSpec, LayerSpec, RopeScaling, Rotary};

/// From a configuration to the decoder that it describes.
type Reader = fn(&Config) -> Result<DecoderSpec>;

/// A value of `model_type`.
pub(super) struct Family {
    pub(super) model_type: &'static str,
    /// Fields that files may leave out, a JSON object.
    defaults: &'static str,
    read: Reader,
}

impl Family {
    pub(super) const fn new(
        model_type: &'static str,
        defaults: &'static str,
        read: Reader,
    ) -> Self {
        Self {
            model_type,
            defaults,
            read,
        }
    }

    /// The decoder that the text of a `config.json` describes.
    pub(super) fn spec(&self, json: &str) -> Result<DecoderSpec> {
        let config = Config::read(self.defaults, json)?;
        // Before a family makes something for each layer.
        for name in ["num_hidden_layers", "n_layer", "n_layers", "num_layers"] {
            if let Some(count) = config.size(name) {
                check_layers(count).context(name)?;
            }
        }
        let spec = (self.read)(&config)?;
        // The only reader of the files' settings of the output layer.
        Ok(DecoderSpec {
            head: spec.head.said(config.tied),
            ..spec
        })
    }
}

/// The fields of a file, with the family's defaults.
pub(crate) struct Config {
    fields: Map<String, Value>,
    /// Whether the file says that the table of tokens is the output layer.
    tied: Option<bool>,
}

impl Config {
    /// The fields of a `config.json`, and of `defaults`, a JSON object, those that it leaves out.
    pub(crate) fn read(defaults: &str, json: &str) -> Result<Self> {
        let mut fields: Map<String, Value> = parse(defaults)?;
        let mut given: Map<String, Value> = parse(json)?;
        // `null` counts as absent, as it does in Python.
        given.retain(|_, value| !value.is_null());
        // Models with image input have the fields of their language model in an object; those outside it take precedence.
        if let Some(Value::Object(text)) = given.remove("text_config") {
            for (name, value) in text {
                given.entry(name).or_insert(value);
            }
        }
        given.retain(|_, value| !value.is_null());
        // The second name is LFM2's, in files older than Transformers 5.
        let tied = ["tie_word_embeddings", "tie_embedding"]
            .iter()
            .find_map(|name| given.get(*name)?.as_bool());
        fields.extend(given);
        // One per query head.
        if let Some(heads) = fields.get("num_attention_heads").cloned() {
            fields.entry("num_key_value_heads").or_insert(heads);
        }
        // Transformers 5 writes the rotary settings as one object.
        if let Some(Value::Object(rope)) = fields.get("rope_parameters").cloned() {
            for name in ["rope_theta", "partial_rotary_factor"] {
                if let Some(value) = rope.get(name) {
                    fields.insert(name.to_string(), value.clone());
                }
            }
            // Or as one for each kind of layers.
            if let Some(Value::Object(all)) = rope.get("full_attention") {
                if let Some(theta) = all.get("rope_theta") {
                    fields.insert("rope_theta".into(), theta.clone());
                }
                fields.insert("rope_scaling".into(), Value::Object(all.clone()));
            }
            let local = rope.get("sliding_attention");
            if let Some(theta) = local.and_then(|local| local.get("rope_theta")) {
                fields.insert("rope_local_base_freq".into(), theta.clone());
            }
        }
        Ok(Self { fields, tied })
    }

    /// The family's own configuration.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T> {
        let fields = Value::Object(self.fields.clone());
        serde_json::from_value(fields).map_err(|err| Error::Msg(err.to_string()).bt())
    }

    /// As [`parse`](Self::parse), of fields that are read elsewhere.
    pub(crate) fn parse_without<T: DeserializeOwned>(&self, names: &[&str]) -> Result<T> {
        let mut fields = self.fields.clone();
        fields.retain(|name, _| !names.contains(&name.as_str()));
        Self {
            fields,
            tied: self.tied,
        }
        .parse()
    }

    /// A whole number, if the field is there.
    pub(crate) fn size(&self, name: &str) -> Option<usize> {
        let value = self.fields.get(name)?.as_u64()?;
        usize::try_from(value).ok()
    }

    /// Whether the field is there.
    pub(super) fn has(&self, name: &str) -> bool {
        self.fields.contains_key(name)
    }

    /// A field's value, if the field is there.
    pub(crate) fn value<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let value = self.fields.get(name).cloned();
        let value = value.map(serde_json::from_value).transpose();
        value.map_err(|err| Error::Msg(format!("{name}: {err}")).bt())
    }

    /// As [`value`](Self::value), of a field that the model cannot do without.
    pub(super) fn required<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        match self.value(name)? {
            Some(value) => Ok(value),
            None => bail!("missing field `{name}`"),
        }
    }

    /// Refuses a file that says something else of this field.
    pub(super) fn only(&self, name: &str, value: impl Into<Value>) -> Result<()> {
        let value = value.into();
        let same = |found: &Value| match (found.as_f64(), value.as_f64()) {
            // 1 and 1.0 are two values of JSON.
            (Some(found), Some(value)) => found == value,
            _ => *found == value,
        };
        match self.fields.get(name) {
            Some(found) if !same(found) => {
                bail!("{name}: {found} is not supported; supported: {value}")
            }
            _ => Ok(()),
        }
    }

    /// A list of whole numbers, empty if the field is missing.
    pub(super) fn sizes(&self, name: &str) -> Result<Vec<usize>> {
        Ok(self.value(name)?.unwrap_or_default())
    }

    /// The field, if it is there.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.fields.get(name)
    }

    /// The same with further names for fields: each pair is one that files have, and one that is read.
    pub(crate) fn renamed(&self, names: &[(&str, &str)]) -> Self {
        let mut fields = self.fields.clone();
        for (found, read) in names {
            if let Some(value) = self.fields.get(*found) {
                fields.insert((*read).to_string(), value.clone());
            }
        }
        Self {
            fields,
            tied: self.tied,
        }
    }

    /// A switch; off where the field is missing.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.fields.get(name).and_then(Value::as_bool) == Some(true)
    }

    /// A text, if the field is there.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.fields.get(name)?.as_str()
    }

    /// The decoder with heads of the size that `head_dim` says, where it is there.
    pub(super) fn with_head_dim(&self, mut spec: DecoderSpec) -> DecoderSpec {
        let Some(head_dim) = self.size("head_dim") else {
            return spec;
        };
        let share = self.fields.get("partial_rotary_factor");
        let share = share.and_then(Value::as_f64).unwrap_or(1.);
        let theta = self.fields.get("rope_theta").and_then(Value::as_f64);
        let mut changed = false;
        for attention in spec.layers.iter_mut().filter_map(LayerSpec::attention_mut) {
            changed |= attention.head_dim != head_dim;
            attention.head_dim = head_dim;
        }
        if let (true, Some(theta), Some(rotary)) = (changed, theta, spec.rotaries.first_mut()) {
            *rotary = Rotary::new(rotary.pairs, theta, (head_dim as f64 * share) as usize);
        }
        spec
    }

    /// Whether each layer has a window, as `layer_types` says.
    pub(super) fn windowed(&self, layers: usize) -> Result<Option<Vec<bool>>> {
        let Some(types) = self.fields.get("layer_types") else {
            return Ok(None);
        };
        let types: Vec<String> = serde_json::from_value(types.clone())
            .map_err(|err| Error::Msg(format!("layer_types: {err}")).bt())?;
        if types.len() != layers {
            bail!(
                "layer_types has {} layers, but num_hidden_layers is {layers}",
                types.len()
            )
        }
        let windowed = |kind: &String| match kind.as_str() {
            "full_attention" => Ok(false),
            "sliding_attention" => Ok(true),
            other => bail!(
                "layer_types: {other:?} is not supported; supported: full_attention and \
                 sliding_attention"
            ),
        };
        types.iter().map(windowed).collect::<Result<_>>().map(Some)
    }

    /// The settings of the rotation, `rope_scaling` or in newer files `rope_parameters`, with that name.
    fn rope(&self) -> Option<(&'static str, &Value)> {
        let names = ["rope_scaling", "rope_parameters"];
        names
            .iter()
            .find_map(|name| Some((*name, self.fields.get(*name)?)))
    }

    /// A field of the rotation's settings, if it is there.
    pub(super) fn of_rope<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        match self.rope().and_then(|(_, settings)| settings.get(name)) {
            None | Some(Value::Null) => Ok(None),
            Some(found) => value(name, found).map(Some),
        }
    }

    /// The decoder with its first rotation scaled as `rope_scaling` (in newer files `rope_parameters`) says.
    pub(super) fn scaled(&self, mut spec: DecoderSpec) -> Result<DecoderSpec> {
        let Some((name, settings)) = self.rope() else {
            return Ok(spec);
        };
        let mut settings = settings.clone();
        // Some files have its name twice, in the old spelling and the new one.
        if let Some(fields) = settings.as_object_mut() {
            if fields.contains_key("rope_type") {
                fields.remove("type");
            }
        }
        let scaling: RopeScaling = value(name, &settings)?;
        let scaling = RopeScaling {
            original_max_position_embeddings: scaling
                .original_max_position_embeddings
                .or_else(|| self.size("original_max_position_embeddings")),
            ..scaling
        };
        let theta = self.fields.get("rope_theta").and_then(Value::as_f64);
        let (Some(theta), Some(rotary)) = (theta, spec.rotaries.first_mut()) else {
            bail!("{name}: the model has no rotary embedding to scale")
        };
        let dim = 2 * rotary.frequencies.len();
        *rotary = scaling
            .rotary(rotary.pairs, theta, dim, spec.positions)
            .context(name)?;
        if let Some(dynamic) = rotary.dynamic {
            // The rule is unbounded. Beyond twice the length of the factor, no model is of use.
            let times = (2. * dynamic.factor).clamp(1., 64.);
            spec.positions = (spec.positions as f64 * times) as usize;
        }
        Ok(spec)
    }
}

/// A JSON value, of this field.
pub(crate) fn value<T: DeserializeOwned>(name: &str, value: &Value) -> Result<T> {
    serde_json::from_value(value.clone()).map_err(|err| Error::Msg(format!("{name}: {err}")).bt())
}

/// A JSON text.
pub(crate) fn parse<T: DeserializeOwned>(json: &str) -> Result<T> {
    serde_json::from_str(json).map_err(|err| Error::Msg(err.to_string()).bt())
}
