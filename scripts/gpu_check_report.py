"""The report of gpu_check: gpu-NAME.md and gpu-NAME.json, written again after each part."""
import json
import re

BAD = 'failed', 'timed out'


def mib(n):
    return f'{n / 2**20:,.0f} MiB'


def model_row(title, figures):
    return (f'| {title} | {figures["tokens_per_s"]:,.0f} | {figures["step_ms"]:.1f} ({figures["slowest_ms"]:.1f}) | '
            f'{figures["mfu"]:.3f} of {figures["mfu_of"]} | {figures["of_gemm"]:.3f} | '
            f'{mib(figures["device_bytes"])} ({mib(figures["device_planned_bytes"])}) |')


class Report:
    def __init__(self, arguments, gpu, n_gpus):
        self.arguments, self.gpu, self.n_gpus, self.entries = arguments, gpu, n_gpus, []
        slug = re.sub(r'[^a-z0-9]+', '-', gpu.split(',')[1].strip().lower()).strip('-')
        arguments.output.mkdir(parents=True, exist_ok=True)
        self.path = arguments.output / f'gpu-{slug}.md'

    def add(self, entry):
        self.entries.append(entry)
        self.path.write_text(self.text())
        self.path.with_suffix('.json').write_text(json.dumps(
            {'gpu': self.gpu, 'gpus': self.n_gpus, 'quick': self.arguments.quick, 'tiny': self.arguments.tiny,
             'parts': self.entries}, indent=2) + '\n')

    def failed(self):
        return any(entry['outcome'] in BAD for entry in self.entries)

    def speeds(self):
        """Rows of all runs that were measured."""
        rows = []
        for entry in self.entries:
            figures = entry['figures']
            if 'micro_batch_size' in figures:
                model = figures['model']
                rows.append(model_row(f'{model["title"]}, bf16, {model["batch"]} x {model["T"]} in micro-batches of '
                                      f'{figures["micro_batch_size"]}', figures))
            rows += [model_row(f'{entry["title"]}: {name}', value) for name, value in figures.items()
                     if isinstance(value, dict) and 'tokens_per_s' in value]
            if 'version' in figures:
                rows.append(f'| PyTorch {figures["version"]}, compiled: {figures["of"]} | {figures["tokens_per_s"]:,.0f} | {figures["step_ms"]:.1f} '
                            f'| | | {mib(figures["peak_bytes"])} |')
        return rows

    def operations(self):
        figures = next((entry['figures'] for entry in self.entries if 'operations' in entry['figures']), None)
        if not figures:
            return []
        peak = figures.get('dense_peak_bf16_flops_per_s', 0)
        of_peak = f', {figures["gemm_bf16_flops_per_s"] / peak:.0%} of the dense peak' if peak else ''
        lines = ['', f'Products on random numbers: bf16 {figures["gemm_bf16_flops_per_s"] / 1e12:,.1f} TFLOP/s{of_peak}, fp32 '
                 f'{figures["gemm_fp32_flops_per_s"] / 1e12:,.1f}; memory {figures["bandwidth_bytes_per_s"] / 1e9:,.0f} GB/s.', '',
                 '| operation | type | ms | of its limit |', '|---|---|---:|---|']
        return lines + [f'| {one["operation"]} | {one["type"]} | {one["seconds"] * 1e3:.3f} | {one["of_limit"]:.2f} of {one["limit"]} |'
                        for one in figures['operations']]

    def newton_schulz(self):
        matrices = next((entry['figures']['matrices'] for entry in self.entries if 'matrices' in entry['figures']), ())
        lines = ['', "Newton-Schulz:", '', '| matrices | ms of one | TFLOP/s | of GEMM |', '|---|---:|---:|---:|']
        return lines * bool(matrices) + [
            f'| {one["matrices"]} of {one["rows"]} x {one["columns"]} | {one["seconds"] * 1e3:.3f} | '
            f'{one["flops"] / one["seconds"] / 1e12:.1f} | {one["of_gemm"]:.2f} |' for one in matrices]

    def text(self):
        how = [word for word, given in (('--quick', self.arguments.quick), ('--tiny', self.arguments.tiny)) if given]
        lines = [f'# {self.gpu}', '', 'Written by `scripts/gpu_check.sh`' + (f' with {" ".join(how)}' if how else '')
                 + (f', on a machine with {self.n_gpus} GPUs' if self.n_gpus > 1 else '') + '.', '',
                 '| part | outcome | s | |', '|---|---|---:|---|']
        for entry in self.entries:
            figures = entry['figures']
            notes = [entry['reason'], *figures.get('lines', ())]
            if 'outcomes' in figures and not entry['reason']:
                passed = sum(outcome == 'ok' for outcome in figures['outcomes'].values())
                notes.append(f'{passed} of {len(figures["outcomes"])} passed')
            cell = '; '.join(filter(None, notes)).replace('|', '\\|').replace('\n', ' ')
            lines.append(f'| {entry["title"]} | {entry["outcome"]} | {entry["seconds"]:.0f} | {cell} |')
        if rows := self.speeds():
            lines += ['', 'Medians of steps:', '', '| run | tokens/s | ms per step (slowest) | MFU | of GEMM | GPU memory (planned) |',
                      '|---|---:|---:|---|---:|---|', *rows]
        return '\n'.join(lines + self.newton_schulz() + self.operations()) + '\n'
