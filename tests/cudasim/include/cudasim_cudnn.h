// The simulated cuDNN's interface for tests.
#ifndef CUDASIM_CUDASIM_CUDNN_H
#define CUDASIM_CUDASIM_CUDNN_H

#ifdef __cplusplus
extern "C" {
#endif

// The number of plans executed so far.
int cudasim_cudnn_executions(void);

#ifdef __cplusplus
}
#endif
#endif
