// Decision trees and random forests, trained with the kernels of wasi:gpu: the twin of ../trees in C++, without libc.
//
// Both make the same bytes of the same data, parameters and scores. They draw the same numbers, add in the same order, and number leaves
// in the same order. ../trees says why it is done this way; here are the differences that C++ makes.
#pragma once

#include "wasi_gpu.h"

namespace forest {

// Memory that frees itself. Moves, and does not copy. Elements are plain data.
template <class T> class List {
  public:
    List() = default;
    List(List &&other) : items(other.items), count(other.count), room(other.room) { other.forget(); }
    List &operator=(List &&other) {
        if (this != &other) {
            drop();
            items = other.items, count = other.count, room = other.room;
            other.forget();
        }
        return *this;
    }
    ~List() { drop(); }

    size_t size() const { return count; }
    bool empty() const { return count == 0; }
    T *data() { return items; }
    const T *data() const { return items; }
    T &operator[](size_t at) { return items[at]; }
    const T &operator[](size_t at) const { return items[at]; }
    T *begin() { return items; }
    T *end() { return items + count; }
    const T *begin() const { return items; }
    const T *end() const { return items + count; }

    void push(T item) {
        reserve(count + 1);
        new (items + count, Here()) T(static_cast<T &&>(item));
        count++;
    }
    void append(const T *from, size_t length) {
        reserve(count + length);
        if (length) __builtin_memcpy(static_cast<void *>(items + count), from, length * sizeof(T));
        count += length;
    }
    // Adds zeros, or cuts off. For plain data.
    void resize(size_t length) {
        reserve(length);
        if (length > count) __builtin_memset(static_cast<void *>(items + count), 0, (length - count) * sizeof(T));
        count = length;
    }

    struct Here {};

  private:
    void reserve(size_t length) {
        if (length <= room) return;
        size_t wider = room * 2 < 4 ? 4 : room * 2;
        if (wider < length) wider = length;
        size_t bytes;
        if (__builtin_mul_overflow(wider, sizeof(T), &bytes)) __builtin_trap();
        // Lists move by their bytes: nothing points at them.
        items = static_cast<T *>(realloc(items, bytes));
        if (!items) __builtin_trap();
        room = wider;
    }
    void drop() {
        for (size_t i = 0; i < count; i++) items[i].~T();
        free(items);
    }
    void forget() { items = nullptr, count = 0, room = 0; }

    T *items = nullptr;
    size_t count = 0, room = 0;
};

} // namespace forest

// Placement new without the standard library's header: a different signature, so that both may be there.
template <class Here> inline void *operator new(size_t, void *at, Here) noexcept { return at; }

namespace forest {

// ---- random numbers, as in ../trees/src/random.rs

inline uint32_t hash(uint32_t word) {
    uint32_t state = word * 747796405u + 2891336453u;
    uint32_t mixed = ((state >> ((state >> 28) + 4)) ^ state) * 277803737u;
    return (mixed >> 22) ^ mixed;
}

inline uint32_t below(uint32_t word, uint32_t end) { return uint32_t((uint64_t(word) * end) >> 32); }

// The features in the order in which a node tries them.
class Features {
  public:
    Features(uint32_t count, bool shuffled, uint32_t seed, uint32_t tree, uint32_t node)
        : state(hash(node + hash(tree + hash(~seed)))), shuffled(shuffled) {
        order.resize(count);
        for (uint32_t i = 0; i < count; i++) order[i] = i;
    }
    bool next(uint32_t &feature) {
        size_t left = order.size() - taken;
        if (left == 0) return false;
        if (shuffled) {
            state = hash(state);
            size_t pick = taken + below(state, uint32_t(left));
            uint32_t other = order[taken];
            order[taken] = order[pick];
            order[pick] = other;
        }
        feature = order[taken++];
        return true;
    }

  private:
    List<uint32_t> order;
    size_t taken = 0;
    uint32_t state;
    bool shuffled;
};

// Sorts finite numbers by merging; `spare` is of the same size.
inline void sort(List<float> &values, List<float> &spare) {
    size_t count = values.size();
    spare.resize(count);
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t start = 0; start < count; start += 2 * width) {
            size_t middle = start + width < count ? start + width : count, end = start + 2 * width < count ? start + 2 * width : count;
            size_t left = start, right = middle;
            for (size_t to = start; to < end; to++) {
                bool take_left = left < middle && (right >= end || values[left] <= values[right]);
                spare[to] = take_left ? values[left++] : values[right++];
            }
        }
        List<float> sorted = static_cast<List<float> &&>(spare);
        spare = static_cast<List<float> &&>(values);
        values = static_cast<List<float> &&>(sorted);
    }
}

// ---- errors: the first one stays, and ends what is going on

// Text, 255 bytes at most.
class Error {
  public:
    explicit operator bool() const { return length != 0; }
    const char *text() const { return bytes; }
    size_t size() const { return length; }

    Error &say(const char *part) {
        while (*part && length + 1 < sizeof bytes) bytes[length++] = *part++;
        bytes[length] = 0;
        return *this;
    }
    Error &say(uint64_t number) {
        char digits[21];
        size_t at = sizeof digits - 1;
        digits[at] = 0;
        do digits[--at] = char('0' + number % 10);
        while (number /= 10);
        return say(digits + at);
    }
    // Of the last call that the host refused. Returns false, as the call did.
    bool refused(const char *call) {
        if (*this) return false;
        const gpu_error_t *error = wasi_gpu_last_error();
        say(call).say(": ").say(wasi_gpu_error_name(error->tag));
        if (error->message[0]) say(": ").say(error->message);
        return false;
    }

  private:
    char bytes[256] = {};
    size_t length = 0;
};

// ---- the device

// Device memory of 4-byte words. It has a name after `create` only.
class Buffer {
  public:
    Buffer() = default;
    Buffer(Buffer &&other) : name(other.name), words(other.words) { other.name = 0; }
    Buffer &operator=(Buffer &&other) {
        uint32_t swapped = name;
        name = other.name, words = other.words, other.name = swapped;
        return *this;
    }
    ~Buffer() {
        // It can fail only if the device is lost, and then there is nothing to free.
        if (name) wasi_gpu_compute_buffer_destroy(name);
    }

    buffer_id_t id() const { return name; }

    // `length` zeros; at least one.
    bool create(uint64_t length, Error &error) {
        if (name) wasi_gpu_compute_buffer_destroy(name);
        words = length ? length : 1;
        name = wasi_gpu_compute_buffer_create(words * 4, BUFFER_USAGE_STORAGE | BUFFER_USAGE_COPY_SRC | BUFFER_USAGE_COPY_DST);
        return name || error.refused("buffer-create");
    }
    // A larger one unless it has `length` words; the contents are lost then.
    bool reserve(uint64_t length, Error &error) {
        if (name && length <= words) return true;
        uint64_t wider = 1;
        while (wider < length) wider *= 2;
        return create(wider, error);
    }
    bool write(const void *from, size_t length, Error &error) {
        return wasi_gpu_compute_buffer_write(name, 0, from, length * 4) || error.refused("buffer-write");
    }
    bool create_with(const void *from, size_t length, Error &error) { return create(length, error) && write(from, length, error); }
    bool copy(uint64_t to, const Buffer &src, uint64_t from, uint64_t length, Error &error) {
        return wasi_gpu_compute_buffer_copy(src.name, from * 4, name, to * 4, length * 4) || error.refused("buffer-copy");
    }
    // The first `length` words. Waits for the device.
    template <class T> bool read(List<T> &into, uint64_t length, Error &error) {
        static_assert(sizeof(T) == 4);
        if (length * 4 > UINT32_MAX) {
            error.say(length).say(" words are more than one buffer-read returns: use fewer rows, or max-thresholds");
            return false;
        }
        into.resize(size_t(length));
        return wasi_gpu_compute_buffer_read(name, 0, uint32_t(length * 4), into.data()) || error.refused("buffer-read");
    }

  private:
    buffer_id_t name = 0;
    uint64_t words = 0;
};

// ---- the model, in the format of ../trees/src/model.rs

constexpr uint32_t LEAF = UINT32_MAX;
constexpr uint32_t MAGIC = 0x31464757; // "WGF1"

struct Node {
    uint32_t feature = LEAF;
    float threshold = 0;
    uint32_t left = 0, right = 0;
};

inline uint32_t bits(float value) { return __builtin_bit_cast(uint32_t, value); }

struct Model {
    uint32_t features = 0, outputs = 0, depth = 0;
    List<uint32_t> offsets;
    List<Node> nodes;
    List<float> values;

    List<uint32_t> words() const {
        List<uint32_t> words;
        const uint32_t head[] = {MAGIC, features, outputs, depth, uint32_t(offsets.size()), uint32_t(nodes.size())};
        words.append(head, 6);
        words.append(offsets.data(), offsets.size());
        for (const Node &node : nodes) {
            const uint32_t node_words[] = {node.feature, bits(node.threshold), node.left, node.right};
            words.append(node_words, 4);
        }
        words.push(uint32_t(values.size() / outputs));
        for (float value : values) words.push(bits(value));
        return words;
    }

    // Checks what `Model::from_bytes` in Rust does.
    bool read(const uint8_t *bytes, size_t size, Error &error) {
        auto bad = [&](const char *why) {
            error.say("not a model: ").say(why);
            return false;
        };
        size_t at = 0;
        auto have = [&](uint64_t count) { return count * 4 <= size - at; };
        auto word = [&] {
            uint32_t value;
            __builtin_memcpy(&value, bytes + at, 4);
            at += 4;
            return value;
        };
        if (!have(6) || word() != MAGIC) return bad("it does not begin with WGF1");
        features = word(), outputs = word(), depth = word();
        uint32_t trees = word(), count = word();
        if (!features || !outputs || !trees) return bad("features, outputs or trees are 0");
        if (!have(uint64_t(trees) + uint64_t(count) * 4 + 1)) return bad("bytes are missing");
        for (uint32_t i = 0; i < trees; i++) offsets.push(word());
        for (uint32_t i = 0; i < count; i++) {
            Node node;
            node.feature = word(), node.threshold = __builtin_bit_cast(float, word()), node.left = word(), node.right = word();
            nodes.push(node);
        }
        uint64_t leaves = word();
        if ((size - at) / 4 / outputs != leaves || (size - at) != leaves * outputs * 4) return bad("its end is not where it should be");
        values.resize(size_t(leaves * outputs));
        __builtin_memcpy(values.data(), bytes + at, size - at);
        for (uint32_t tree = 0; tree < trees; tree++) {
            uint32_t start = offsets[tree], end = tree + 1 < trees ? offsets[tree + 1] : count;
            if (start >= end || end > count || (tree == 0 && start != 0)) return bad("a tree has no nodes");
            for (uint32_t i = start; i < end; i++) {
                const Node &node = nodes[i];
                auto after = [&](uint32_t child) { return child > i - start && child < end - start; };
                if (node.feature == LEAF ? node.left >= leaves : node.feature >= features || !after(node.left) || !after(node.right))
                    return bad("a node names a feature, child or leaf that does not exist");
            }
        }
        return true;
    }
};

// ---- checks

// The number of rows, or 0.
inline uint32_t rows(const float *data, size_t length, uint32_t features, Error &error) {
    if (features == 0 || length % features || length == 0 || length / features > UINT32_MAX) {
        error.say(length).say(" values of data are not rows of ").say(features).say(" features");
        return 0;
    }
    for (size_t i = 0; i < length; i++)
        if (!__builtin_isfinite(data[i])) {
            error.say("row ").say(i / features).say(", feature ").say(i % features).say(" of the data is not finite");
            return 0;
        }
    return uint32_t(length / features);
}

// ---- training

struct Params {
    bool classification = false;
    uint32_t trees = 200, max_depth = 16, max_features = 0, max_thresholds = 0;
    bool bootstrap = true;
    uint32_t seed = 42;
};

class Training {
  public:
    Model model;
    uint32_t reads = 0, kernels = 0;
    Error error;

    // Whether it went well; `error` says why not.
    bool train(const Params &wanted, uint32_t features, const float *data, size_t length, const float *labels, size_t label_count) {
        params = wanted;
        model.features = features;
        this->data = data, this->labels = labels;
        count = rows(data, length, features, error);
        if (!count || !make_columns(label_count)) return false;
        if (params.trees == 0) {
            error.say("a forest has at least 1 tree");
            return false;
        }
        if (params.max_features > features) {
            error.say("max-features is ").say(params.max_features).say(", but there are ").say(features);
            return false;
        }
        tried = params.max_features ? params.max_features : uint32_t(__builtin_ceil(__builtin_sqrt(double(features))));
        if (!make_buffers()) return false;
        for (uint32_t tree = 0; tree < params.trees; tree++) {
            trees.push(List<Node>());
            trees[tree].push(Node());
        }
        if (!roots()) return false;
        for (uint32_t depth = 0;; depth++) {
            List<Open> level = static_cast<List<Open> &&>(next);
            next = List<Open>();
            for (size_t at = 0; at < level.size();) {
                Batch batch;
                while (batch.words.size() + batch.scores < BATCH_WORDS && at < level.size())
                    push(batch, static_cast<Open &&>(level[at++]), depth < params.max_depth);
                if (!score(batch)) return false;
                apply(batch);
            }
            if (next.empty()) {
                model.depth = depth;
                break;
            }
        }
        model.outputs = uint32_t(columns.size());
        for (const List<Node> &tree : trees) {
            model.offsets.push(uint32_t(model.nodes.size()));
            model.nodes.append(tree.data(), tree.size());
        }
        return true;
    }

  private:
    static constexpr size_t BATCH_WORDS = 1 << 22;
    static constexpr uint32_t MAX_CLASSES = 1024;

    struct Open {
        uint32_t tree, node;
        List<uint32_t> rows;
    };
    struct Candidate {
        uint32_t feature;
        size_t at, count;
    };
    struct Waiting {
        Open open;
        size_t at;
        List<Candidate> candidates;
    };
    struct Batch {
        List<uint32_t> words;
        size_t scores = 0;
        List<Waiting> nodes;
    };

    Params params;
    const float *data = nullptr, *labels = nullptr;
    uint32_t count = 0, tried = 0;
    List<List<float>> columns;
    List<List<Node>> trees;
    List<Open> next;
    List<float> scores, values, spare;
    Buffer data_buffer, upload, indices, thresholds, output, gathered;
    List<Buffer> column_buffers;

    float value(uint32_t row, uint32_t feature) const { return data[size_t(row) * model.features + feature]; }

    bool make_columns(size_t label_count) {
        if (label_count != count) {
            error.say(count).say(" rows of data and ").say(label_count).say(" labels");
            return false;
        }
        uint32_t classes = 1;
        for (uint32_t i = 0; i < count; i++) {
            float label = labels[i];
            if (!__builtin_isfinite(label)) {
                error.say("label ").say(i).say(" is not finite");
                return false;
            }
            if (!params.classification) continue;
            if (!(label >= 0 && label < float(MAX_CLASSES)) || label != float(uint32_t(label))) {
                error.say("label ").say(i).say(" is not a class from 0 to ").say(MAX_CLASSES - 1);
                return false;
            }
            if (uint32_t(label) + 1 > classes) classes = uint32_t(label) + 1;
        }
        for (uint32_t k = 0; k < classes; k++) {
            List<float> column;
            column.append(labels, count);
            if (params.classification)
                for (float &label : column) label = uint32_t(label) == k ? 1.0f : 0.0f;
            columns.push(static_cast<List<float> &&>(column));
        }
        return true;
    }

    bool make_buffers() {
        if (!data_buffer.create_with(data, size_t(count) * model.features, error)) return false;
        for (const List<float> &column : columns) {
            Buffer buffer;
            if (!buffer.create_with(column.data(), count, error)) return false;
            column_buffers.push(static_cast<Buffer &&>(buffer));
        }
        return indices.create(count, error) && thresholds.create(count, error) && output.create(count, error);
    }

    bool roots() {
        List<uint32_t> draws;
        uint64_t total = uint64_t(params.trees) * count;
        if (params.bootstrap) {
            if (!gathered.reserve(total, error)) return false;
            for (uint32_t tree = 0; tree < params.trees; tree++) {
                bootstrap_params_t draw = {count, hash(tree + hash(params.seed)), count};
                if (!wasi_gpu_ml_kernels_kernel_bootstrap_sample(&draw, indices.id())) return error.refused("kernel-bootstrap-sample");
                kernels++;
                if (!gathered.copy(uint64_t(tree) * count, indices, 0, count, error)) return false;
            }
            reads++;
            if (!gathered.read(draws, total, error)) return false;
        }
        for (uint32_t tree = 0; tree < params.trees; tree++) {
            Open root = {tree, 0, {}};
            if (params.bootstrap)
                root.rows.append(draws.data() + size_t(tree) * count, count);
            else
                for (uint32_t row = 0; row < count; row++) root.rows.push(row);
            next.push(static_cast<Open &&>(root));
        }
        return true;
    }

    bool mixed(const List<uint32_t> &rows) const {
        for (uint32_t row : rows)
            if (labels[row] != labels[rows[0]]) return true;
        return false;
    }

    // Appends midpoints of the values that a feature has in these rows; returns how many.
    size_t append_thresholds(List<uint32_t> &words, const List<uint32_t> &rows, uint32_t feature) {
        values.resize(0);
        for (uint32_t row : rows) values.push(value(row, feature));
        sort(values, spare);
        size_t all = 0;
        for (size_t i = 1; i < values.size(); i++) {
            float low = values[i - 1], high = values[i];
            if (!(low < high)) continue;
            float middle = float((double(low) + double(high)) / 2);
            values[all++] = (middle < high ? middle : low) + 0.0f;
        }
        size_t most = params.max_thresholds;
        bool spread = most != 0 && all > most;
        size_t taken = spread ? most : all;
        for (size_t i = 0; i < taken; i++) {
            size_t at = spread ? size_t((2 * uint64_t(i) + 1) * all / (2 * uint64_t(most))) : i;
            words.push(bits(values[at]));
        }
        return taken;
    }

    void push(Batch &batch, Open &&open, bool split) {
        Waiting waiting = {static_cast<Open &&>(open), batch.words.size(), {}};
        const List<uint32_t> &rows = waiting.open.rows;
        if (split && mixed(rows)) {
            batch.words.append(rows.data(), rows.size());
            Features order(model.features, tried < model.features, params.seed, waiting.open.tree, waiting.open.node);
            uint32_t feature;
            for (uint32_t i = 0; (i < tried || waiting.candidates.empty()) && order.next(feature); i++) {
                size_t at = batch.words.size(), found = append_thresholds(batch.words, rows, feature);
                if (!found) continue;
                waiting.candidates.push({feature, at, found});
                batch.scores += found * columns.size();
            }
        }
        batch.nodes.push(static_cast<Waiting &&>(waiting));
    }

    bool score(const Batch &batch) {
        scores.resize(0);
        if (!batch.scores) return true;
        if (!upload.reserve(batch.words.size(), error) || !gathered.reserve(batch.scores, error)) return false;
        if (!upload.write(batch.words.data(), batch.words.size(), error)) return false;
        uint64_t done = 0;
        for (const Waiting &node : batch.nodes) {
            if (node.candidates.empty()) continue;
            uint32_t rows = uint32_t(node.open.rows.size());
            if (!indices.copy(0, upload, node.at, rows, error)) return false;
            for (const Candidate &candidate : node.candidates) {
                if (!thresholds.copy(0, upload, candidate.at, candidate.count, error)) return false;
                find_split_params_t split = {rows, model.features, candidate.feature, uint32_t(candidate.count)};
                for (const Buffer &column : column_buffers) {
                    if (!wasi_gpu_ml_kernels_kernel_find_split(&split, data_buffer.id(), column.id(), indices.id(), thresholds.id(),
                                                               output.id()))
                        return error.refused("kernel-find-split");
                    kernels++;
                    if (!gathered.copy(done, output, 0, candidate.count, error)) return false;
                    done += candidate.count;
                }
            }
        }
        reads++;
        return gathered.read(scores, done, error);
    }

    void apply(Batch &batch) {
        size_t start = 0;
        for (Waiting &node : batch.nodes) {
            double best = __builtin_inf();
            uint32_t feature = 0;
            float threshold = 0;
            for (const Candidate &candidate : node.candidates) {
                for (size_t i = 0; i < candidate.count; i++) {
                    double score = 0;
                    for (size_t k = 0; k < columns.size(); k++) score += double(scores[start + k * candidate.count + i]);
                    if (score < best) {
                        best = score;
                        feature = candidate.feature;
                        threshold = __builtin_bit_cast(float, batch.words[candidate.at + i]);
                    }
                }
                start += candidate.count * columns.size();
            }
            if (__builtin_isfinite(best))
                split(node.open, feature, threshold);
            else
                leaf(node.open);
        }
    }

    void split(const Open &open, uint32_t feature, float threshold) {
        List<uint32_t> left, right;
        for (uint32_t row : open.rows) (value(row, feature) <= threshold ? left : right).push(row);
        if (left.empty() || right.empty()) return leaf(open);
        List<Node> &tree = trees[open.tree];
        uint32_t child = uint32_t(tree.size());
        tree[open.node] = {feature, threshold, child, child + 1};
        tree.push(Node());
        tree.push(Node());
        next.push({open.tree, child, static_cast<List<uint32_t> &&>(left)});
        next.push({open.tree, child + 1, static_cast<List<uint32_t> &&>(right)});
    }

    void leaf(const Open &open) {
        Node &node = trees[open.tree][open.node];
        node.left = uint32_t(model.values.size() / columns.size());
        for (const List<float> &column : columns) {
            double sum = 0;
            for (uint32_t row : open.rows) sum += double(column[row]);
            model.values.push(float(sum / double(open.rows.size())));
        }
    }
};

// ---- prediction: (rows, outputs), as `predict` and `predict_by_average` in ../trees/src/predict.rs

inline void transpose(const List<float> &columns, uint32_t rows, uint32_t outputs, List<float> &into) {
    into.resize(columns.size());
    for (size_t row = 0; row < rows; row++)
        for (size_t k = 0; k < outputs; k++) into[row * outputs + k] = columns[k * rows + row];
}

inline bool predict(const Model &model, const float *data, size_t length, List<float> &into, Error &error) {
    uint32_t count = rows(data, length, model.features, error);
    Buffer samples, offsets, nodes, column, columns;
    if (!count || !samples.create_with(data, length, error) ||
        !offsets.create_with(model.offsets.data(), model.offsets.size(), error) || !nodes.create(uint64_t(model.nodes.size()) * 4, error) ||
        !column.create(count, error) || !columns.create(uint64_t(count) * model.outputs, error))
        return false;
    batch_predict_params_t params = {count, model.features, uint32_t(model.offsets.size()), model.depth ? model.depth : 1};
    for (uint32_t k = 0; k < model.outputs; k++) {
        List<Node> of_output;
        of_output.append(model.nodes.data(), model.nodes.size());
        for (Node &node : of_output)
            if (node.feature == LEAF) node = {LEAF, model.values[size_t(node.left) * model.outputs + k], 0, 0};
        if (!nodes.write(of_output.data(), of_output.size() * 4, error)) return false;
        if (!wasi_gpu_ml_kernels_kernel_batch_predict(&params, samples.id(), nodes.id(), offsets.id(), column.id()))
            return error.refused("kernel-batch-predict");
        if (!columns.copy(uint64_t(k) * count, column, 0, count, error)) return false;
    }
    List<float> read;
    if (!columns.read(read, uint64_t(count) * model.outputs, error)) return false;
    transpose(read, count, model.outputs, into);
    return true;
}

inline bool predict_by_average(const Model &model, const float *data, size_t length, List<float> &into, Error &error) {
    uint32_t count = rows(data, length, model.features, error);
    if (!count) return false;
    List<uint32_t> leaves;
    for (size_t row = 0; row < count; row++)
        for (uint32_t root : model.offsets) {
            const Node *node = &model.nodes[root];
            while (node->feature != LEAF)
                node = &model.nodes[root + (data[row * model.features + node->feature] <= node->threshold ? node->left : node->right)];
            leaves.push(node->left);
        }
    Buffer predictions, column, columns;
    if (!predictions.create(leaves.size(), error) || !column.create(count, error) ||
        !columns.create(uint64_t(count) * model.outputs, error))
        return false;
    average_params_t params = {uint32_t(model.offsets.size()), count};
    List<float> values;
    for (uint32_t k = 0; k < model.outputs; k++) {
        values.resize(0);
        for (uint32_t leaf : leaves) values.push(model.values[size_t(leaf) * model.outputs + k]);
        if (!predictions.write(values.data(), values.size(), error)) return false;
        if (!wasi_gpu_ml_kernels_kernel_average(&params, predictions.id(), column.id())) return error.refused("kernel-average");
        if (!columns.copy(uint64_t(k) * count, column, 0, count, error)) return false;
    }
    List<float> read;
    if (!columns.read(read, uint64_t(count) * model.outputs, error)) return false;
    transpose(read, count, model.outputs, into);
    return true;
}

} // namespace forest
