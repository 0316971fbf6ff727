import type { ModelSource, PartFile } from "./simd/candle.js";

export interface Hooks {
    /** Hears how many of a file's bytes have been read. */
    onProgress?(name: string, done: number, size: number): void;
    /** Hears what the user should know, and what does not stop the download. */
    onNotice?(message: string): void;
}

/** A file on a server that answers range requests. What was read is kept in the Cache API. */
export function fromUrl(url: string, hooks?: Hooks): Promise<PartFile>;
/** A file or another blob. */
export function fromBlob(blob: Blob, name?: string, hooks?: Hooks): PartFile;
/** The model at an address: a GGUF file, a folder as on Hugging Face, or the name `owner/model` of one there. */
export function fromAddress(address: string, hooks?: Hooks): Promise<ModelSource>;
/** The model in a folder on a server. */
export function fromFolder(url: string, hooks?: Hooks): Promise<ModelSource>;
/** The model in dropped or chosen files. */
export function fromFiles(files: Iterable<File>, hooks?: Hooks): Promise<ModelSource>;
