/// <reference lib="esnext.disposable" />
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
/** The model at an address: a GGUF file, a folder as on Hugging Face, or a name there: `owner/model`, `owner/model:file.gguf`. */
export function fromAddress(address: string, hooks?: Hooks): Promise<ModelSource>;
/**
 * The address of a model's folder on the Hugging Face Hub, or of its file `owner/model:file` if it ends in one of `endings`, `gguf` if none is
 * given. What is no name of a model stays as it is.
 */
export function hub(address: string, endings?: string[]): string;
/** The model in a folder on a server. */
export function fromFolder(url: string, hooks?: Hooks): Promise<ModelSource>;
/** The model in dropped or chosen files. */
export function fromFiles(files: Iterable<File>, hooks?: Hooks): Promise<ModelSource>;

/** A file that the browser has kept: `bytes` of its `size`. */
export interface KeptFile {
    url: string;
    name: string;
    bytes: number;
    size: number;
}

/** The files that the browser has kept, but for empty ones. */
export function keptFiles(): Promise<KeptFile[]>;
/** Deletes what was kept of a file. */
export function deleteKept(url: string): Promise<void>;
/** Asks the browser, in a page, not to delete what is kept when it needs room; whether it will not. It may ask the user. */
export function persist(): Promise<boolean>;
