mod blocks;
mod config;
mod generation;
mod llama;
mod support;
mod utils;
