// Trains a forest of a CSV file, tries it on rows that it has not seen, and prints one line of JSON: the twin of ../forest-cli.
#include "forest.hpp"

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

struct Args {
    std::string file;
    forest::Params params;
};

const char *const USAGE = "usage: forest-cpp FILE [--task regression|classification] [--trees N] [--max-depth N] [--max-features N]\n"
                          "                  [--max-thresholds N] [--seed N] [--no-bootstrap]\n";

bool number(const char *text, uint32_t &into) {
    char *end;
    errno = 0;
    unsigned long long value = std::strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || value > UINT32_MAX) return false;
    into = uint32_t(value);
    return true;
}

bool parse(int argc, char **argv, Args &args) {
    const struct {
        const char *name;
        uint32_t *into;
    } numbers[] = {
        {"--trees", &args.params.trees},
        {"--max-depth", &args.params.max_depth},
        {"--max-features", &args.params.max_features},
        {"--max-thresholds", &args.params.max_thresholds},
        {"--seed", &args.params.seed},
    };
    for (int i = 1; i < argc; i++) {
        std::string arg = argv[i];
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        uint32_t *into = nullptr;
        for (auto &option : numbers)
            if (arg == option.name) into = option.into;
        if (into) {
            if (!number(value, *into)) return false;
            i++;
        } else if (arg == "--task") {
            args.params.classification = std::strcmp(value, "classification") == 0;
            if (!args.params.classification && std::strcmp(value, "regression") != 0) return false;
            i++;
        } else if (arg == "--no-bootstrap") {
            args.params.bootstrap = false;
        } else if (arg[0] == '-' || !args.file.empty()) {
            return false;
        } else {
            args.file = arg;
        }
    }
    return !args.file.empty();
}

struct Table {
    uint32_t features = 0;
    std::vector<float> data, labels;
};

// An error, or an empty text.
std::string read_table(const std::string &path, Table &table) {
    FILE *file = std::fopen(path.c_str(), "rb");
    if (!file) return path + ": " + std::strerror(errno);
    std::string text;
    char part[4096];
    while (size_t length = std::fread(part, 1, sizeof part, file)) text.append(part, length);
    bool failed = std::ferror(file);
    std::fclose(file);
    if (failed) return path + ": " + std::strerror(errno);
    size_t line = 0;
    for (size_t at = 0; at < text.size();) {
        size_t end = text.find('\n', at);
        if (end == std::string::npos) end = text.size();
        std::string row = text.substr(at, end - at);
        at = end + 1;
        if (!row.empty() && row.back() == '\r') row.pop_back();
        if (row.empty()) continue;
        if (line++ == 0) {
            for (char c : row) table.features += c == ',';
            if (table.features == 0) return path + ": it takes a feature and a label, at least";
            continue;
        }
        const char *field = row.c_str();
        for (uint32_t i = 0; i <= table.features; i++) {
            char *rest;
            float value = std::strtof(field, &rest);
            if (rest == field || *rest != (i < table.features ? ',' : '\0'))
                return path + ": line " + std::to_string(line) + " is not " + std::to_string(table.features + 1) + " numbers";
            (i < table.features ? table.data : table.labels).push_back(value);
            field = rest + 1;
        }
    }
    if (table.labels.size() < 2) return path + ": it takes 2 rows: one to train on, one to try";
    return "";
}

// Rows `from` to `to` of `order`.
Table take(const Table &table, const std::vector<uint32_t> &order, size_t from, size_t to) {
    Table taken;
    taken.features = table.features;
    for (size_t i = from; i < to; i++) {
        auto row = table.data.begin() + long(order[i]) * table.features;
        taken.data.insert(taken.data.end(), row, row + table.features);
        taken.labels.push_back(table.labels[order[i]]);
    }
    return taken;
}

uint64_t fnv(const uint8_t *bytes, size_t size) {
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < size; i++) hash = (hash ^ bytes[i]) * 0x100000001b3;
    return hash;
}

// With quotation marks.
std::string quoted(wasi_gpu_string_t text) {
    std::string out = "\"";
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = text.ptr[i];
        char escape[8];
        if (c == '"' || c == '\\') {
            out += '\\';
            out += char(c);
        } else if (c < 0x20) {
            std::snprintf(escape, sizeof escape, "\\u%04x", c);
            out += escape;
        } else {
            out += char(c);
        }
    }
    return out + '"';
}

double milliseconds(std::chrono::steady_clock::time_point since) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - since).count();
}

int failed(const std::string &why) {
    std::fprintf(stderr, "forest-cpp: %s\n", why.c_str());
    return 1;
}

} // namespace

int main(int argc, char **argv) {
    Args args;
    if (!parse(argc, argv, args)) {
        std::fputs(USAGE, stderr);
        return 2;
    }
    Table table;
    std::string error = read_table(args.file, table);
    if (!error.empty()) return failed(error);

    // Shuffled; a fifth of the rows, rounded up, to try.
    std::vector<uint32_t> order(table.labels.size());
    for (size_t i = 0; i < order.size(); i++) order[i] = uint32_t(i);
    uint32_t state = args.params.seed;
    for (size_t i = 0; i < order.size(); i++) {
        state = forest::hash(state);
        std::swap(order[i], order[i + forest::below(state, uint32_t(order.size() - i))]);
    }
    size_t tries = (order.size() + 4) / 5;
    Table test = take(table, order, 0, tries), train = take(table, order, tries, order.size());

    device_info_t device;
    wasi_gpu_compute_get_device_info(&device);

    auto start = std::chrono::steady_clock::now();
    forest::Training training;
    if (!training.train(args.params, table.features, train.data.data(), train.data.size(), train.labels.data(), train.labels.size()))
        return failed(training.error.text());
    double training_ms = milliseconds(start);
    const forest::Model &model = training.model;

    start = std::chrono::steady_clock::now();
    forest::List<float> outputs;
    forest::Error refused;
    if (!forest::predict(model, test.data.data(), test.data.size(), outputs, refused)) return failed(refused.text());
    double inference_ms = milliseconds(start);

    double squares = 0;
    size_t right = 0;
    for (size_t row = 0; row < tries; row++) {
        size_t best = 0;
        float label = test.labels[row];
        for (size_t k = 0; k < model.outputs; k++) {
            float output = outputs[row * model.outputs + k];
            double wanted = !args.params.classification ? double(label) : label == float(k) ? 1.0 : 0.0;
            squares += (double(output) - wanted) * (double(output) - wanted);
            if (output > outputs[row * model.outputs + best]) best = k;
        }
        right += label == float(best);
    }
    char accuracy[32] = "null";
    if (args.params.classification) std::snprintf(accuracy, sizeof accuracy, "%.17g", double(right) / double(tries));

    forest::List<uint32_t> words = model.words();
    std::printf("{\"language\":\"c++\",\"gpu_device\":%s,\"gpu_backend\":%s,\"features\":%u,\"train_rows\":%zu,\"test_rows\":%zu,\"trees\":%u,"
                "\"nodes\":%zu,\"depth\":%u,\"reads\":%u,\"kernels\":%u,\"training_ms\":%.17g,\"inference_ms\":%.17g,\"mse\":%.17g,"
                "\"accuracy\":%s,\"hash\":\"%016llx\"}\n",
                quoted(device.name).c_str(), quoted(device.backend).c_str(), unsigned(table.features), train.labels.size(), tries,
                unsigned(args.params.trees), model.nodes.size(), unsigned(model.depth), unsigned(training.reads), unsigned(training.kernels),
                training_ms, inference_ms, squares / double(outputs.size()), accuracy,
                static_cast<unsigned long long>(fnv(reinterpret_cast<const uint8_t *>(words.data()), words.size() * 4)));
    wasi_gpu_free_device_info(&device);
    return std::fflush(stdout) ? failed("standard output cannot be written") : 0;
}
