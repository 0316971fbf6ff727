//! Pre-tokenisation of byte-level tokenizers, by the name in `tokenizer.ggml.pre`.
//!
//! The names are llama.cpp's, the expressions those in the models' own `tokenizer.json`.

use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split as Pattern, SplitPattern};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::SplitDelimiterBehavior;

use super::failed;
use super::metadata::Metadata;
use crate::Result;

/// The pre-tokenisation of a text.
#[derive(Clone, Copy)]
pub(super) struct Split {
    /// Regular expressions whose matches become separate parts, applied in sequence.
    patterns: &'static [&'static str],
    /// Whether each digit is a separate part.
    digits: bool,
    /// Whether GPT-2's expression is applied last.
    gpt2: bool,
    /// Whether a part that is a token is not split by merges.
    pub(super) ignore_merges: bool,
    /// Whether a text begins with a special token by default.
    pub(super) adds_bos: bool,
    /// Whether letters and their accents are composed first (NFC).
    pub(super) composes: bool,
}

const GPT2: Split = Split {
    patterns: &[],
    digits: false,
    gpt2: true,
    ignore_merges: false,
    adds_bos: false,
    composes: false,
};

const fn patterns(patterns: &'static [&'static str]) -> Split {
    Split {
        patterns,
        gpt2: false,
        ..GPT2
    }
}

const STARCODER: Split = Split {
    digits: true,
    ..GPT2
};

const LLAMA3: Split = Split {
    ignore_merges: true,
    adds_bos: true,
    ..patterns(&[
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ])
};

const DBRX: Split = Split {
    ignore_merges: false,
    adds_bos: false,
    ..LLAMA3
};

const QWEN2: Split = Split {
    composes: true,
    ..patterns(&[
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ])
};

const GPT4O: Split = patterns(&[
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]);

const TEKKEN: Split = Split {
    ignore_merges: true,
    ..patterns(&[
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ])
};

const DEEPSEEK3: Split = patterns(&[
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
]);

const DEEPSEEK_CODER: Split = patterns(&[
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    r"[一-龥ࠀ-一가-퟿]+",
    r"\p{N}",
]);

const FALCON: Split = Split {
    patterns: &[r"[\p{P}\$\+<=>\^~\|`]+", r"[0-9][0-9][0-9]"],
    ..GPT2
};

/// Known pre-tokenisations by name.
const KNOWN: [(&[&str], Split); 10] = [
    (
        &[
            "default",
            "gpt-2",
            "gpt2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "roberta-bpe",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
            "trillion",
            "granite-docling",
        ],
        GPT2,
    ),
    (
        &[
            "starcoder",
            "refact",
            "command-r",
            "smollm",
            "codeshell",
            "exaone",
            "minerva-7b",
        ],
        STARCODER,
    ),
    (
        &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "lfm2",
            "midm-2.0",
        ],
        LLAMA3,
    ),
    (&["dbrx", "smaug-bpe", "chatglm-bpe", "glm4"], DBRX),
    (&["qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"], QWEN2),
    (&["gpt-4o", "llama4"], GPT4O),
    (&["tekken"], TEKKEN),
    (&["deepseek-v3", "hunyuan-dense"], DEEPSEEK3),
    (&["deepseek-coder"], DEEPSEEK_CODER),
    (&["falcon"], FALCON),
];

/// The pre-tokenisation that a file names; GPT-2's if it names none.
pub(super) fn by_name(metadata: &Metadata) -> Result<Split> {
    let Some(name) = metadata.optional_text("pre")? else {
        return Ok(GPT2);
    };
    let found = KNOWN
        .iter()
        .find(|(names, _)| names.contains(&name.as_str()));
    found.map(|(_, split)| *split).ok_or_else(|| {
        let known = KNOWN.map(|(names, _)| names.join(", ")).join(", ");
        metadata.refuse(
            "pre",
            format!("{name:?} is not supported; expected one of {known}"),
        )
    })
}

impl Split {
    pub(super) fn pre_tokenizer(&self) -> Result<Sequence> {
        let mut steps = Vec::new();
        for pattern in self.patterns {
            let pattern = SplitPattern::Regex(pattern.to_string());
            let pattern = Pattern::new(pattern, SplitDelimiterBehavior::Isolated, false);
            steps.push(PreTokenizerWrapper::Split(pattern.map_err(failed)?));
        }
        if self.digits {
            steps.push(PreTokenizerWrapper::Digits(Digits::new(true)));
        }
        let bytes = ByteLevel::new(false, true, self.gpt2);
        steps.push(PreTokenizerWrapper::ByteLevel(bytes));
        Ok(Sequence::new(steps))
    }
}
