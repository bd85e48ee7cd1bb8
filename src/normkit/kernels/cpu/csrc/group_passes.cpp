// How the passes over groups follow each other. A slice is some channels of one k0, whole groups of them; it goes
// through every pass before the next one comes, so that it is read from the cache:
//
//   forward    moments of its chunks of rows -> statistics -> coefficients -> y
//   backward   sums of its chunks of rows -> coefficients, gradients of parameters -> dx
//
// Work is cut by shape alone, and what belongs to a sample by the shape of a sample: no bit depends on the number of
// threads, and none of a sample on its batch. Threads share the slices, or the pieces of each where those are large.
#include <cmath>
#include <limits>

#include "groups.h"
#include "tensor.h"

namespace normkit {
namespace {

constexpr int64_t CACHED = 4 * GRAIN; // numbers of a slice that are still there in the next pass
constexpr int64_t SETS = 256;         // most sums of one number that are kept apart
constexpr int64_t SLACK = 64;         // passes read and write whole registers of coefficients

int64_t divided(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

struct Cut {
    bool spans;
    int64_t width, slices;  // channels of a slice; slices of a k0
    int64_t rows, chunks;   // rows of a chunk; chunks of a slice
    int64_t samples, sets;  // k0s of a set, which one thread does one after the other; sets
    int64_t unit;           // numbers in a slice of a set
    bool share_slices;      // among threads; else the pieces of each slice

    Cut(const Shape &s, bool given) : spans(s.i > 1) {
        const int64_t J = s.channels();
        width = J;
        if (spans) {
            const int64_t group = s.r1 * s.r3 * s.i, several = most(1, GRAIN / group);
            if (!given && (group <= CACHED || s.r1 == 1)) width = least(J, s.r3 == 1 ? divided(several, 4) * 4 : several * s.r3);
            rows = most(most(1, divided(s.r1, SETS)), GRAIN / (width * s.i));
        } else {
            if (s.r3 == 1 && s.r1 * TILE <= CACHED) width = least(J, TILE);
            rows = divided(most(most(1, divided(s.r1, SETS)), GRAIN / width), BLOCK_ROWS) * BLOCK_ROWS;
        }
        slices = divided(J, width);
        chunks = divided(s.r1, rows);
        samples = most(divided(s.k0, SETS), least(s.k0, GRAIN / (s.r1 * width * s.i)));
        if (samples < 1) samples = 1;
        sets = divided(s.k0, samples);
        unit = samples * s.r1 * width * s.i;
        uint32_t threads; // who does what, not what is done
        check(torch_get_num_threads(&threads));
        const int64_t units = sets * slices;
        share_slices = units >= 8 * threads || units % threads == 0 || s.r1 * width * s.i <= CACHED;
    }
};

// What a slice needs between its passes; a thread uses it again for the next one.
struct Work {
    Doubles memory;
    double *free, *mean, *var, *rstd, *a, *b, *chunk_a, *chunk_b, *count, *row_a, *row_b;
    double *hi, *p, *q, *t, *s; // in the compute dtype
    double *take(int64_t n) { return std::exchange(free, free + n); }
    Work(const Cut &cut, const Shape &shape)
        : memory((12 + 2 * cut.chunks) * (cut.width + SLACK) + cut.chunks + 2 * tiles(cut) * shape.r1), free(memory.data) {
        for (double **each : {&mean, &var, &rstd, &a, &b, &hi, &p, &q, &t, &s}) *each = take(cut.width + SLACK);
        for (double **each : {&chunk_a, &chunk_b}) *each = take(cut.chunks * cut.width);
        for (double **each : {&row_a, &row_b}) *each = take(tiles(cut) * shape.r1);
        count = take(cut.chunks);
    }
    static int64_t tiles(const Cut &cut) { return divided(cut.width, TILE); }
};

struct Slice {
    const Groups &job;
    const Cut &cut;
    Work &work;
    int64_t k0, from, width;

    int64_t first_group() const { return k0 * job.shape.k2 + from / job.shape.r3; }
    int64_t groups() const { return width / job.shape.r3; }

    Channels channels() const {
        Channels c = {};
        c.groups = groups();
        c.r3 = job.shape.r3;
        c.mean = job.mean + first_group();
        c.var = job.var + first_group();
        c.count = job.count + first_group();
        c.rstd = work.rstd;
        c.weight = job.weight + from;
        c.bias = job.bias + from;
        c.hi = work.hi;
        c.p = work.p;
        c.eps = job.eps;
        c.center = job.center;
        return c;
    }

    // A pass over the pieces of the slice: fill(piece, chunk, tile) says where its sums and coefficients are. The last
    // pass goes backwards, and begins with what is still in the cache.
    enum Way { FORWARDS, BACKWARDS };
    template <class Fill> void pass(Way way, const Groups &how, PieceFn span, PieceFn column, int64_t from, int64_t width, Fill fill) const {
        const int64_t i = how.shape.i, r1 = how.shape.r1, rows = cut.rows;
        const PieceFn run = i > 1 ? span : column;
        const int64_t several = GRAIN / (least(rows, r1) * i), tile = least(TILE, i == 1 ? width : i > 512 ? most(1, several) : most(4, several / 4 * 4));
        const int64_t tiles = divided(width, tile);
        parallel(cut.chunks * tiles, least(rows, r1) * tile * i, [&](int64_t begin, int64_t end) {
            for (int64_t next = begin; next < end; ++next) {
                const int64_t task = way == FORWARDS ? next : begin + end - 1 - next;
                const int64_t chunk = task / tiles, at = task % tiles * tile;
                Piece piece = {};
                piece.k0 = k0;
                piece.row = chunk * rows;
                piece.last = least(r1, piece.row + rows);
                piece.from = from + at;
                piece.width = least(tile, width - at);
                fill(piece, chunk, at);
                run(how, piece);
            }
        });
    }
    const void *offset(const void *base, int64_t channels) const {
        return base ? static_cast<const char *>(base) + channels * (job.type == F64 ? 8 : 4) : nullptr;
    }

    // Statistics of the groups. Without a mask the channels of a group are one long span, where they are neighbours.
    void moments() const {
        Groups view = job;
        const bool merged = !job.mask && (job.shape.i > 1 || job.shape.r1 == 1);
        if (merged) view.shape = {job.shape.k0, job.shape.r1, job.shape.k2, 1, job.shape.r3 * job.shape.i};
        const int64_t per = merged ? job.shape.r3 : 1, n = width / per, r3 = job.shape.r3 / per;
        const Kernels &k = kernels();
        pass(FORWARDS, view, k.span_moments[job.type], k.column_moments[job.type], from / per, n, [&](Piece &piece, int64_t chunk, int64_t at) {
            piece.a = work.chunk_a + chunk * n + at;
            piece.b = work.chunk_b + chunk * n + at;
            piece.count = work.count + chunk;
        });
        double *mean = work.chunk_a, *m2 = work.chunk_b, count = work.count[0];
        for (int64_t c = 1; c < cut.chunks; ++c) {
            if (work.count[c] > 0) k.merge_moments(n, mean, m2, count, work.count[c], mean + c * n, m2 + c * n);
            count += work.count[c];
        }
        const double each = count > 0 ? 1 / count : 0, all = 1.0 / r3;
        for (int64_t g = 0; g < groups(); ++g) {
            double *of = mean + g * r3, about = of[0], var = m2[g * r3] * each;
            if (r3 > 1) {
                double off = 0, between = 0;
                for (int64_t c = 0; c < r3; ++c) off += of[c] - of[0];
                about += off * all;
                for (int64_t c = 0; c < r3; ++c) between += m2[g * r3 + c] * each + (of[c] - about) * (of[c] - about);
                var = between * all;
            }
            if (!job.center) var += about * about; // about 0
            job.mean[first_group() + g] = job.center && count > 0 ? about : 0;
            job.var[first_group() + g] = count > 0 ? var : 0;
            job.count[first_group() + g] = count * r3;
        }
    }

    void forward(bool given) const {
        std::vector<Careful> careful;
        if (!given) {
            moments();
            for (int64_t g = first_group(); g < first_group() + groups(); ++g) {
                Careful result;
                if (job.count[g] > 0 && !in_range(job, job.var[g] + job.eps) && careful_forward(job, g, result))
                    careful.push_back(std::move(result));
            }
        }
        const Kernels &k = kernels();
        Channels c = channels();
        c.q = work.q;
        k.channel_scales[job.type](c);
        pass(BACKWARDS, job, k.span_apply[job.type], k.column_apply[job.type], from, width, [&](Piece &piece, int64_t, int64_t at) {
            piece.hi = offset(work.hi, at);
            piece.p = offset(work.p, at);
            piece.q = offset(work.q, at);
        });
        for (const Careful &result : careful) put_back(job, result);
    }

    // dweight, dbias: of the channels, or of each r1; null where not needed. fresh: they begin here.
    void backward(bool given, double *dweight, double *dbias, bool fresh) const {
        const Kernels &k = kernels();
        const bool on_rows = job.row_weight, sums = !given || (!on_rows && (dweight || dbias));
        std::vector<Careful> careful;
        std::vector<double> careful_dweight;
        Channels c = channels();
        for (int64_t g = 0; g < groups() && !given; ++g) { // a group that is done by itself counts as one of zeros
            work.mean[g] = c.mean[g];
            work.var[g] = c.var[g];
            if (!(c.count[g] > 0) || in_range(job, c.var[g] + job.eps) || std::isnan(c.var[g])) continue;
            if (dweight && careful_dweight.empty()) careful_dweight.resize(on_rows ? job.shape.r1 : job.shape.channels());
            Careful result;
            if (!careful_backward(job, first_group() + g, result, dweight ? careful_dweight.data() : nullptr)) continue;
            careful.push_back(std::move(result));
            work.mean[g] = 0;
            work.var[g] = std::numeric_limits<double>::infinity();
        }
        if (!given) c.mean = work.mean, c.var = work.var;
        c.s = on_rows ? work.s : nullptr;
        k.channel_scales[job.type](c);
        if (sums) {
            pass(FORWARDS, job, k.span_sums[job.type], k.column_sums[job.type], from, width, [&](Piece &piece, int64_t chunk, int64_t at) {
                piece.a = work.chunk_a + chunk * width + at;
                piece.b = work.chunk_b + chunk * width + at;
                piece.hi = offset(work.hi, at);
                piece.p = offset(work.p, at);
                piece.write = given; // no sums are needed for it
            });
            k.sum_chunks[F64](work.chunk_a, cut.chunks, width, 0, width, work.a);
            k.sum_chunks[F64](work.chunk_b, cut.chunks, width, 0, width, work.b);
            for (const Careful &result : careful)
                for (int64_t r3 = 0; r3 < c.r3; ++r3) work.b[(result.group - first_group()) * c.r3 + r3] = 0;
            c.a = work.a;
            c.b = work.b;
            c.dweight = dweight && !on_rows ? dweight + from : nullptr;
            c.dbias = dbias && !on_rows ? dbias + from : nullptr;
            c.q = given ? nullptr : work.q;
            c.t = given ? nullptr : work.t;
            c.fresh = fresh;
            k.channel_slopes[job.type](c);
        }
        if (!(sums && given))
            pass(BACKWARDS, job, k.span_gradient[job.type], k.column_gradient[job.type], from, width, [&](Piece &piece, int64_t, int64_t at) {
                piece.hi = offset(work.hi, at);
                piece.p = offset(work.p, at);
                piece.q = offset(work.q, at);
                piece.t = given ? nullptr : offset(work.t, at);
                piece.s = offset(work.s, at);
                piece.row_a = work.row_a + at / TILE * job.shape.r1;
                piece.row_b = work.row_b + at / TILE * job.shape.r1;
            });
        for (int64_t r = 0; on_rows && r < job.shape.r1; ++r) {
            double a = 0, b = 0;
            for (int64_t tile = 0; tile < divided(width, TILE); ++tile) a += work.row_a[tile * job.shape.r1 + r], b += work.row_b[tile * job.shape.r1 + r];
            if (dweight) dweight[r] = (fresh ? 0 : dweight[r]) + b;
            if (dbias) dbias[r] = (fresh ? 0 : dbias[r]) + a;
        }
        for (size_t j = 0; j < careful_dweight.size(); ++j)
            if (on_rows || (int64_t(j) >= from && int64_t(j) < from + width)) dweight[j] += careful_dweight[j];
        for (const Careful &result : careful) put_back(job, result);
    }
};

// body(slice, set, index of the slice, is it the first of its set) for all slices
template <class Body> void each_slice(const Groups &job, const Cut &cut, const Body &body) {
    const int64_t units = cut.sets * cut.slices, J = job.shape.channels();
    auto run = [&](int64_t begin, int64_t end) {
        Work work(cut, job.shape);
        for (int64_t unit = begin; unit < end; ++unit) {
            const int64_t set = unit / cut.slices, index = unit % cut.slices, from = index * cut.width;
            for (int64_t k0 = set * cut.samples; k0 < least(job.shape.k0, (set + 1) * cut.samples); ++k0)
                body(Slice{job, cut, work, k0, from, least(cut.width, J - from)}, set, index, k0 == set * cut.samples);
        }
    };
    if (cut.share_slices) parallel(units, cut.unit, run);
    else run(0, units);
}

} // namespace

int64_t part_rows(const Groups &job, bool given) {
    const Cut cut(job.shape, given);
    return job.row_weight ? cut.sets * cut.slices : cut.sets;
}

void run_forward(const Groups &job, bool given) {
    each_slice(job, Cut(job.shape, given), [&](const Slice &slice, int64_t, int64_t, bool) { slice.forward(given); });
}

void run_backward(const Groups &job, bool given, double *dweight, double *dbias) {
    const Cut cut(job.shape, given);
    each_slice(job, cut, [&](const Slice &slice, int64_t set, int64_t index, bool fresh) {
        const int64_t row = job.row_weight ? (set * cut.slices + index) * job.shape.r1 : set * job.shape.channels();
        slice.backward(given, dweight ? dweight + row : nullptr, dbias ? dbias + row : nullptr, fresh);
    });
}

} // namespace normkit
